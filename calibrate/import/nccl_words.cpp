#include "calibrate/import/nccl_words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace rehearse::calibrate {

std::optional<std::string> collective_in(const std::string& line) {
  static const std::array<std::pair<const char*, const char*>, 7> programs{{{"all_reduce_perf", "all_reduce"}, {"all_gather_perf", "all_gather"}, {"reduce_scatter_perf", "reduce_scatter"}, {"alltoall_perf", "all_to_all"},
                                                                            {"broadcast_perf", "broadcast"}, {"sendrecv_perf", "send_recv"}, {"reduce_perf", "reduce"}}};
  for (const auto& [program, name] : programs) {
    const std::size_t at = line.find(program);
    // "all_reduce_perf" ends in "reduce_perf": the name must begin where a word begins.
    if (at != std::string::npos && (at == 0 || !(std::isalnum(static_cast<unsigned char>(line[at - 1])) || line[at - 1] == '_'))) return name;
  }
  return std::nullopt;
}

std::optional<std::string> dtype_of_nccl(const std::string& word) {
  std::string w;
  for (const char c : word) w += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (const std::size_t colon = w.rfind("::"); colon != std::string::npos) w = w.substr(colon + 2);
  if (w == "float" || w == "float32" || w == "fp32") return "fp32";
  if (w == "half" || w == "float16" || w == "fp16") return "fp16";
  if (w == "bfloat16" || w == "bf16") return "bf16";
  if (w == "double" || w == "float64") return "fp64";
  if (w.starts_with("fp8") || w.starts_with("f8") || w.starts_with("float8")) return "fp8";
  return std::nullopt;
}

std::optional<std::string> collective_of_torch(const std::string& name) {
  std::string w;
  for (const char c : name)
    if (c != '_') w += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto has = [&](const char* part) { return w.find(part) != std::string::npos; };
  if (has("allreduce")) return "all_reduce";
  if (has("allgather")) return "all_gather";
  if (has("reducescatter")) return "reduce_scatter";
  if (has("alltoall")) return "all_to_all";
  if (has("broadcast")) return "broadcast";
  if (w == "send" || w == "recv") return "send_recv";
  if (w == "reduce") return "reduce";
  return std::nullopt;
}

int bytes_of_dtype(const std::string& d) { return d == "fp64" ? 8 : d == "fp32" || d == "tf32" ? 4 : d == "fp8" ? 1 : 2; }

}  // namespace rehearse::calibrate
