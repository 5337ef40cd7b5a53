# Build kinds and the one interface target that carries every flag: each of our targets links baton_flags.
set(BATON_BUILD "dev" CACHE STRING "dev, release, asan or tsan")
option(BATON_TESTS "Build the tests" ON)
option(BATON_FAILPOINTS "Compile named failpoints in (never in release builds)" OFF)
option(BATON_DCHECK "Compile BATON_DCHECK in" OFF)
option(BATON_WERROR "Warnings are errors" ON)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

find_program(BATON_CCACHE ccache)
if(BATON_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${BATON_CCACHE}")
endif()

add_library(baton_flags INTERFACE)
target_include_directories(baton_flags INTERFACE "${CMAKE_SOURCE_DIR}")
# -ffp-contract=off: g++ fuses even intrinsics otherwise, and the promise rests on explicit FMAs (docs/exactness.md).
target_compile_options(baton_flags INTERFACE -ffp-contract=off -fno-fast-math -g1
  -Wall -Wextra -Wshadow -Wconversion -Wnon-virtual-dtor $<$<BOOL:${BATON_WERROR}>:-Werror>)
if(BATON_BUILD STREQUAL "release")
  # g++ 12 sees overlaps and overflows at -O3 inside libstdc++ and fmt that are not there.
  target_compile_options(baton_flags INTERFACE -O3 -Wno-restrict -Wno-stringop-overflow)
elseif(BATON_BUILD STREQUAL "asan")
  target_compile_options(baton_flags INTERFACE -O1 -fsanitize=address,undefined
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(baton_flags INTERFACE -fsanitize=address,undefined)
elseif(BATON_BUILD STREQUAL "tsan")
  target_compile_options(baton_flags INTERFACE -O1 -fsanitize=thread -Wno-tsan)
  target_link_options(baton_flags INTERFACE -fsanitize=thread)
else()
  target_compile_options(baton_flags INTERFACE -O2)
endif()
# Of the files in folders named after an instruction set; nothing else is compiled with them.
set(baton_avx2_flags -mavx2 -mfma -mf16c)
# g++ 12 warns about the deliberately undefined source operand inside its own avx512fintrin.h.
set(baton_avx512_flags ${baton_avx2_flags} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
    -mavx512bf16 -mprefer-vector-width=512 -Wno-maybe-uninitialized -Wno-uninitialized)
target_compile_definitions(baton_flags INTERFACE
  $<$<BOOL:${BATON_FAILPOINTS}>:BATON_FAILPOINTS=1>
  $<$<BOOL:${BATON_DCHECK}>:BATON_DCHECK_ON=1>)
find_program(BATON_MOLD mold)
if(BATON_MOLD)
  target_link_options(baton_flags INTERFACE -fuse-ld=mold)
endif()
