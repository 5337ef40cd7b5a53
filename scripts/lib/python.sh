# shellcheck shell=bash
# The private Python environment in the user's cache folder. It is complete only when its stamp says
# so: one that an interrupted run left behind is made again.

system_python() {
  # The distribution's python3, whatever else stands first in PATH.
  if [ -x /usr/bin/python3 ]; then echo /usr/bin/python3; else command -v python3; fi
}

# ensure_venv: an environment with pip and nothing else is enough to fetch the model.
ensure_venv() {
  local version
  version=$("$(system_python)" -c 'import sys; print(sys.version)')
  if [ -x "$baton_venv/bin/python" ] && [ "$(cat "$baton_venv/made-by" 2>/dev/null)" = "$version" ]; then
    return 0
  fi
  phase "making the Python environment in $baton_venv"
  rm -rf "$baton_venv"
  "$(system_python)" -m venv "$baton_venv"
  printf '%s' "$version" >"$baton_venv/made-by"
}

# ensure_python_packages: requirements.txt, by hash.
ensure_python_packages() {
  local wanted=$baton_root/scripts/requirements.txt
  ensure_venv
  if cmp -s "$wanted" "$baton_venv/requirements.txt"; then return 0; fi
  phase "installing the Python packages of scripts/requirements.txt"
  "$baton_venv/bin/python" -m pip install --disable-pip-version-check --no-input --require-hashes \
    --only-binary :all: -r "$wanted"
  cp "$wanted" "$baton_venv/requirements.txt.new"
  mv "$baton_venv/requirements.txt.new" "$baton_venv/requirements.txt"
}
