# Loops over host memory that stand for what CPU optimizers do: as fast as vector instructions make them.
get_filename_component(host_memory ${CMAKE_CURRENT_LIST_DIR}/../calibrate/probe/host_memory.cpp ABSOLUTE)
set_source_files_properties(${host_memory} PROPERTIES COMPILE_OPTIONS "-O3;-fno-math-errno;-fno-trapping-math" SKIP_UNITY_BUILD_INCLUSION ON)
