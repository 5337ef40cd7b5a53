# shellcheck shell=bash
# install_packages GROUP...: what packages.txt lists under those groups and this machine lacks.
# Asks the package manager only when something is missing.

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "packages are missing and this is neither root nor is there sudo; as root: apt-get install ${packages_missing[*]}"
  fi
}

package_installed() {
  [ "$(dpkg-query -W -f '${Status}' "$1" 2>/dev/null)" = 'install ok installed' ]
}

packages_missing=()

# Each line's first installed or, else, first known alternative goes into packages_missing if absent.
# Argument 1: `known` asks apt which alternatives exist (its lists must be there), `first` does not.
collect_missing() {
  local how=$1 group names name chosen alternatives wanted
  shift
  packages_missing=()
  while read -r group names _; do
    case "$group" in '' | '#'*) continue ;; esac
    for wanted in "$@"; do
      [ "$group" = "$wanted" ] || continue
      IFS='|' read -ra alternatives <<<"$names"
      chosen=''
      for name in "${alternatives[@]}"; do
        if package_installed "$name"; then continue 3; fi
      done
      for name in "${alternatives[@]}"; do
        if [ "$how" = first ] || [ -n "$(apt-cache madison "$name" 2>/dev/null)" ]; then
          chosen=$name
          break
        fi
      done
      packages_missing+=("${chosen:-${alternatives[0]}}")
    done
  done <"$baton_root/scripts/packages.txt"
}

install_packages() {
  command -v dpkg-query >/dev/null ||
    die "this is not Debian or Ubuntu; install what scripts/packages.txt lists, then build with cmake --preset dev"
  collect_missing first "$@"
  [ ${#packages_missing[@]} -gt 0 ] || return 0
  phase "installing ${#packages_missing[@]} packages"
  printf '%s\n' "${packages_missing[*]}" | fold -s -w 100
  local options=(-y -q -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 -o Acquire::Retries=3)
  as_root apt-get "${options[@]}" update
  collect_missing known "$@"
  # A run that was interrupted may have left packages unpacked and not configured.
  as_root env DEBIAN_FRONTEND=noninteractive dpkg --configure -a
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get "${options[@]}" install --no-install-recommends "${packages_missing[@]}"
}
