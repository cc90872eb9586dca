// Variables of a job's environment: what PyTorch's allocator, CUDA's launches and NCCL's events do otherwise because of them.
#include "sim/importers/megatron_parts.h"

namespace rehearse::importers {

namespace {

/// Settings that are separated by commas, of which one changes what the simulated allocator does.
void read_allocator(Importer& in) {
  for (const char* key : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    const std::string settings = in.word(key).value_or("");
    constexpr std::string_view name = "expandable_segments:";
    if (const std::size_t at = settings.find(name); at != std::string::npos) {
      const std::size_t begin = at + name.size();
      const std::string value = settings.substr(begin, settings.find(',', begin) - begin);
      if (const auto on = parse_flag(value)) in.set("memory.expandable_segments", *on ? "true" : "false", key);
      else in.complain(key, "expandable_segments is '" + value + "'", "Write expandable_segments:True or expandable_segments:False");
    } else if (in.has(key)) {
      in.use(key, "of the allocator's settings expandable_segments alone is simulated");
    }
  }
}

/// Ends of collectives that carry a time hold what stands behind them in the one queue that all streams share.
void read_timed_collectives(Importer& in) {
  constexpr const char* key = "TORCH_NCCL_ENABLE_TIMING";
  if (!in.flag(key).value_or(false)) return;
  if (in.integer("CUDA_DEVICE_MAX_CONNECTIONS").value_or(0) == 1) in.set("training.serial_collectives", "true", key);
  else in.use(key, "streams have queues of their own, which do not wait for each other's events");
}

}  // namespace

void read_megatron_environment(Importer& in) {
  read_allocator(in);
  if (in.flag("CUDA_LAUNCH_BLOCKING").value_or(false)) in.set("training.launch_blocking", "true", "CUDA_LAUNCH_BLOCKING");
  read_timed_collectives(in);
}

}  // namespace rehearse::importers
