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

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
