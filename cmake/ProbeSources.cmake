# rehearse-probe's sources that are no CUDA: its parts of calibrate and of core, compiled into it, since the machines that it runs on have little
# else. Whoever lets one of them use another file of ours names that here (tests/CMakeLists.txt links them alone).
get_filename_component(root ${CMAKE_CURRENT_LIST_DIR}/.. ABSOLUTE)
file(GLOB REHEARSE_PROBE_SOURCES CONFIGURE_DEPENDS ${root}/calibrate/json.cpp ${root}/calibrate/measurements*.cpp ${root}/calibrate/operations*.cpp ${root}/calibrate/probe/*.cpp)
list(APPEND REHEARSE_PROBE_SOURCES ${root}/sim/core/error.cpp ${root}/sim/core/contract.cpp ${root}/sim/core/suggestion.cpp)

# Loops over host memory stand for what CPU optimizers do: as fast as vector instructions make them. GCC takes -fno-math-errno, without which sqrtf is
# called element by element, from the command line only.
set_source_files_properties(${root}/calibrate/probe/host_memory.cpp PROPERTIES COMPILE_OPTIONS "-O3;-fno-math-errno;-fno-trapping-math" SKIP_UNITY_BUILD_INCLUSION ON)
