// NCCL's and PyTorch's words for collectives and number formats, in ours.
// Leaves out the formats they stand in.
#pragma once

#include <optional>
#include <string>

namespace rehearse::calibrate {

/// The collective that a line of text names by its test program ("all_reduce_perf", "sendrecv_perf"); null: none.
std::optional<std::string> collective_in(const std::string& line);
/// "float", "half", "bfloat16", "fp8_e4m3", "uint8", "Float", "BFloat16", "c10::BFloat16": of the formats that a measurements
/// file knows; null for others (integers, complex).
std::optional<std::string> dtype_of_nccl(const std::string& word);
/// "allreduce", "_allgather_base", "reduce_scatter_tensor_coalesced", "all_to_allv", "send": null: barriers and the like.
std::optional<std::string> collective_of_torch(const std::string& name);
int bytes_of_dtype(const std::string& dtype);

}  // namespace rehearse::calibrate
