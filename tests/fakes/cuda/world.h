// A GPU on paper: what the made-up CUDA runtime, cuBLASLt and NCCL beside this file know of its memory. They do no work and
// take made-up times, but refuse what the real ones would refuse: memory that is not there, sizes that do not fit each other,
// calls out of order. So the probe's real host code runs from end to end on any machine (tests/probe_on_paper.sh).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace rehearse::paper {

/// Says what is wrong, with the call, and ends the program with code 70.
[[noreturn]] void refuse(const std::string& what);

/// Are these bytes memory of the GPU, of one allocation that is still there?
extern "C" bool paper_is_device_memory(const void* at, std::size_t bytes);

/// Something runs on this stream for so long.
extern "C" void paper_runs(void* stream, double seconds, const char* what);

}  // namespace rehearse::paper
