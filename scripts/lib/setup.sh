# shellcheck shell=bash
# The set-up that demo, test and nightly share. Source this one; it brings the others.

lib=$(dirname "${BASH_SOURCE[0]}")
# shellcheck source=scripts/lib/common.sh
. "$lib/common.sh"
# shellcheck source=scripts/lib/packages.sh
. "$lib/packages.sh"
# shellcheck source=scripts/lib/python.sh
. "$lib/python.sh"
# shellcheck source=scripts/lib/model.sh
. "$lib/model.sh"
# shellcheck source=scripts/lib/build.sh
. "$lib/build.sh"

# setup PYTHON GROUP...: packages of these groups, the model, and with PYTHON=full the test packages.
setup() {
  local python=$1
  shift
  install_packages "$@"
  cache_lock
  ensure_model
  if [ "$python" = full ]; then ensure_python_packages; fi
  cache_unlock
}
