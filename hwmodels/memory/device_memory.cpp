#include "hwmodels/memory/device_memory.h"

#include <map>
#include <string>
#include <vector>

#include "hwmodels/device/data_facts.h"
#include "sim/config/document.h"
#include "sim/core/contract.h"
#include "sim/core/resources.h"

namespace rehearse::hwmodels {
namespace {

constexpr const char* kFile = "hwmodels/data/memory/context.yaml";

/// The data file. Sizes by compute capability, or by what stands for all others.
struct MemoryFacts {
  std::map<std::string, Bytes> context, context_of_all_modules, cublas_workspace, transformer_engine_workspace;
  Bytes misc;
  BytesPerSecond taken_again;
};

MemoryFacts read_facts() {
  std::vector<Diagnostic> problems;
  std::map<std::string, std::string> sources;
  FactReader file(config::load_document(resource_root() / kFile).root, "", problems, sources);
  const auto sizes = [&](const std::string& key, const std::vector<std::string>& needed) {
    std::map<std::string, Bytes> out;
    const config::Value* map = file.map(key);
    if (map == nullptr) return out;
    FactReader reader(*map, key + ".", problems, sources);
    for (const std::string& name : needed) reader.map(name);  // missing ones are problems
    for (const std::string& name : reader.keys())
      if (const auto bytes = reader.size(name, &config::parse_bytes)) out[name] = *bytes;
    return out;
  };
  MemoryFacts out;
  out.context = sizes("context", {"cdna", "other"});
  out.context_of_all_modules = sizes("context_of_all_modules", {"other"});
  out.cublas_workspace = sizes("cublas_workspace", {"before_90", "from_90", "cdna", "cdna_before_94"});
  out.transformer_engine_workspace = sizes("transformer_engine_workspace", {"before_90", "from_90", "cdna"});
  out.misc = file.size("misc", &config::parse_bytes).value_or(Bytes{});
  out.taken_again = file.size("taken_again", &config::parse_rate).value_or(BytesPerSecond{});
  file.refuse_the_rest();
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return out;
}

const MemoryFacts& facts() {
  static const MemoryFacts read = read_facts();  // once per process: our own file
  return read;
}

std::string generation(int compute_capability) {
  EXPECTS(compute_capability > 0);
  return compute_capability >= 90 ? "from_90" : "before_90";
}

}  // namespace

Bytes cublas_workspace(int compute_capability) { return facts().cublas_workspace.at(generation(compute_capability)); }

Bytes transformer_engine_workspace(const Gpu& gpu) {
  return facts().transformer_engine_workspace.at(is_cdna(gpu.architecture) ? "cdna" : generation(gpu.compute_capability));
}

DeviceOverheads device_overheads(const Gpu& gpu, bool lazy_modules) {
  const MemoryFacts& f = facts();
  const auto& contexts = lazy_modules || is_cdna(gpu.architecture) ? f.context : f.context_of_all_modules;
  const auto own = contexts.find(is_cdna(gpu.architecture) ? "cdna" : std::to_string(gpu.compute_capability));
  return {.context = own != contexts.end() ? own->second : contexts.at("other"),
          .misc = f.misc,
          .cublas_workspace = is_cdna(gpu.architecture) ? f.cublas_workspace.at(gpu.compute_capability >= 94 ? "cdna" : "cdna_before_94") : cublas_workspace(gpu.compute_capability),
          .taken_again = is_cdna(gpu.architecture) ? BytesPerSecond{} : f.taken_again};
}

}  // namespace rehearse::hwmodels
