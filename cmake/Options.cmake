# Compiler settings shared by every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

option(REHEARSE_TESTS "build the tests" ON)
option(REHEARSE_BENCH "build the Google Benchmark programs" OFF)
option(REHEARSE_WERROR "warnings are errors (CI)" OFF)
set(REHEARSE_SANITIZE "" CACHE STRING "sanitizers for every target, e.g. address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# Same scenario, same bytes in any build type: no contraction, no fast-math.
# For C++ alone: nvcc (cmake/Cuda.cmake) has other options.
macro(rehearse_cxx_options)
  foreach(option ${ARGN})
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:${option}>)
  endforeach()
endmacro()
rehearse_cxx_options(-ffp-contract=off -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers)
# GCC 12 sees ghosts in std::string when it inlines at -O3 (GCC bugs 105329, 105562, 105651).
rehearse_cxx_options(-Wno-restrict -Wno-maybe-uninitialized)
if(REHEARSE_WERROR)
  rehearse_cxx_options(-Werror)
endif()
if(REHEARSE_SANITIZE)
  rehearse_cxx_options(-fsanitize=${REHEARSE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${REHEARSE_SANITIZE})
endif()

# Code that runs once per command (reading options and files) is mostly templates of libraries: at -O1 it compiles in two
# thirds of the time of -O3.
set(rehearse_cold_options $<$<CONFIG:Release>:-O1>)

# How many sources of a target the compiler reads in one go. Most of its time goes into headers, which a batch reads once; a change
# of one source compiles its batch. In a batch, what a source keeps to itself (namespace { }) meets the others': in a room
# such names are used once; a test file has a namespace of its own. 0 (preset dev): each source alone, which also finds
# an #include that only a neighbour had, and is what clang-tidy reads.
set(REHEARSE_UNITY 4 CACHE STRING "sources compiled in one go, in tests twice as many; 0: each alone")
if(REHEARSE_UNITY GREATER 0)
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE ${REHEARSE_UNITY})
  rehearse_cxx_options(-Wno-subobject-linkage)  # it takes the sources of a batch for headers
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# The standard headers that nearly every file reads, read once. With ccache they would do harm: it sees another
# precompiled file in every build folder, and compiles anew what it has.
set(REHEARSE_PCH AUTO CACHE STRING "precompile standard headers: ON, OFF or AUTO (where there is no ccache)")
set_property(CACHE REHEARSE_PCH PROPERTY STRINGS ON OFF AUTO)
if(REHEARSE_PCH STREQUAL "ON" OR (REHEARSE_PCH STREQUAL "AUTO" AND NOT CCACHE_PROGRAM))
  set(rehearse_precompiles TRUE)
  # More of GCC 12's ghosts in std::string: in precompiled headers it forgets that they are the system's.
  rehearse_cxx_options(-Wno-stringop-overflow -Wno-stringop-overread -Wno-array-bounds)
else()
  set(rehearse_precompiles FALSE)
endif()
set(rehearse_standard_headers <algorithm> <array> <chrono> <cstdint> <filesystem> <functional> <map> <optional> <sstream> <string> <string_view>
                              <unordered_map> <utility> <vector> <fmt/format.h>)
# The first target of a kind (same compiler options) precompiles, the others use what it made.
function(rehearse_precompile target kind)
  if(NOT rehearse_precompiles)
    return()
  endif()
  get_property(first GLOBAL PROPERTY rehearse_precompiled_${kind})
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
  else()
    target_precompile_headers(${target} PRIVATE ${ARGN})
    set_property(GLOBAL PROPERTY rehearse_precompiled_${kind} ${target})
  endif()
endfunction()
