# shellcheck shell=bash
# build_preset PRESET [TARGET...]: configure once, then build; ninja shows its progress.

# A file that includes Asio takes up to about 1.5 GB to compile: no more jobs than memory allows.
build_jobs() {
  local cores memory_kb jobs
  cores=$(nproc)
  memory_kb=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  jobs=$((memory_kb / 1500000))
  [ "$jobs" -ge 1 ] || jobs=1
  [ "$jobs" -le "$cores" ] || jobs=$cores
  echo "$jobs"
}

build_flags=()  # more for `cmake --build`
build_preset() {
  local preset=$1
  shift
  phase "building preset $preset${*:+: $*}"
  # Clones in different folders share ccache's results.
  export CCACHE_BASEDIR=$baton_root CCACHE_NOHASHDIR=1
  (
    cd "$baton_root" || exit
    cmake --preset "$preset"
    cmake --build --preset "$preset" -j "$(build_jobs)" ${1:+--target "$@"} "${build_flags[@]}"
  )
}
