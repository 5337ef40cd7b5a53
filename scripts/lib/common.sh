# shellcheck shell=bash
# Shared by all scripts: folders, messages, timed phases. Sourced after `set -euo pipefail`.
# Nothing here assumes git, sudo or a locale: a minimal Debian root has none of them.

baton_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
baton_cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/baton
baton_venv=$baton_cache/venv
export PYTHONUTF8=1 PYTHONDONTWRITEBYTECODE=1

say() { printf '== %s\n' "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

phase_name=''
phase_begin=0
phase_report=''
# phase NAME: ends the running phase and begins one; phase_end prints what each took.
phase() {
  phase_close
  phase_name=$1
  phase_begin=$SECONDS
  say "$phase_name"
}
phase_close() {
  [ -n "$phase_name" ] || return 0
  phase_report+=$(printf '%6d s  %s' $((SECONDS - phase_begin)) "$phase_name")$'\n'
  phase_name=''
}
phase_end() {
  phase_close
  printf '== time per phase\n%s%6d s  in all\n' "$phase_report" "$SECONDS"
}

# One set-up at a time: two scripts started together must not both fill the cache.
cache_lock() {
  mkdir -p "$baton_cache"
  exec 9>"$baton_cache/lock"
  if ! flock -n 9; then
    say "waiting for another run that is filling $baton_cache"
    flock 9
  fi
}
cache_unlock() { exec 9>&-; }
