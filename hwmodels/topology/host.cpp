#include "hwmodels/topology/host.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "hwmodels/device/data_facts.h"
#include "sim/config/document.h"
#include "sim/core/resources.h"

namespace rehearse::hwmodels {
namespace {

constexpr const char* kFile = "hwmodels/data/host/defaults.yaml";

/// The data file: what a node's own file may leave out.
struct HostDefaults {
  double copy_fraction = 0, update_fraction = 0;   // of the DRAM's peak
  BytesPerSecond intel_core, amd_core;             // one thread
  BytesPerSecond fresh, fresh_core, pageable;
};

HostDefaults read_defaults() {
  std::vector<Diagnostic> problems;
  std::map<std::string, std::string> sources;
  FactReader file(config::load_document(resource_root() / kFile).root, "", problems, sources);
  HostDefaults out;
  out.copy_fraction = file.size("copy_fraction", &config::parse_fraction).value_or(0);
  out.update_fraction = file.size("update_fraction", &config::parse_fraction).value_or(0);
  out.intel_core = file.size("intel_core", &config::parse_rate).value_or(BytesPerSecond{});
  out.amd_core = file.size("amd_core", &config::parse_rate).value_or(BytesPerSecond{});
  out.fresh = file.size("fresh", &config::parse_rate).value_or(BytesPerSecond{});
  out.fresh_core = file.size("fresh_core", &config::parse_rate).value_or(BytesPerSecond{});
  out.pageable = file.size("pageable", &config::parse_rate).value_or(BytesPerSecond{});
  file.refuse_the_rest();
  if (!problems.empty()) throw ConfigError(std::move(problems));
  return out;
}

const HostDefaults& defaults() {
  static const HostDefaults read = read_defaults();  // once per process: our own file
  return read;
}

double core_of(const CpuDesign& cpu) {
  if (cpu.core_bandwidth.value > 0) return cpu.core_bandwidth.value;
  return cpu.vendor == CpuVendor::intel ? defaults().intel_core.value : cpu.vendor == CpuVendor::amd ? defaults().amd_core.value : 0;
}

}  // namespace

// Linux gives a page on the memory domain of the thread that touches it first. The driver touches a pinned buffer in the thread that asks
// for it (pytorch/pytorch #160420, #197868: all pages on one node; ai-dynamo/dynamo #3700), so the master weights and gradients that
// DeepSpeed pins lie on one domain; what an optimizer makes for itself is first written by all of its threads, and is spread over all.
// With fewer processes than domains some domains' bandwidth goes unused. DeepSpeed's CPU Adam updates 10 B parameters in 2.57 s in its own
// test, which pins nothing (tests/perf/adam_test.py), and 10.3 B in 6.2 to 6.5 s in training (docs/_tutorials/zero-offload.md, one process
// on the same two sockets).
Duration HostRates::update_time(Bytes moved, Bytes pinned, int threads) const {
  const auto time = [](double bytes, BytesPerSecond rate) { return rate.value > 0 ? bytes / rate.value : 0; };
  const double all = static_cast<double>(moved.value), near = static_cast<double>(pinned.value);
  return seconds(std::max(time(all, core * threads), time(all + near * (crowding - 1), update)));
}

Duration HostRates::touch_time(Bytes bytes, int threads) const {
  const double rate = threads > 0 && fresh_core.value > 0 ? std::min(fresh.value, fresh_core.value * threads) : fresh.value;
  return rate > 0 ? seconds(static_cast<double>(bytes.value) / rate) : Duration{};
}

HostRates host_rates(const ClusterDescription& c) {
  HostRates r;
  const int used = std::max(1, c.gpus_per_node), sharing = std::clamp(c.node.pcie.gpus_per_switch, 1, used);
  const CpuDesign& cpu = c.node.cpu;
  const double dram = cpu.memory_bandwidth.value / used, for_copies = cpu.copy_bandwidth.value > 0 ? cpu.copy_bandwidth.value / used : defaults().copy_fraction * dram;
  const auto copies = [&](BytesPerSecond link, int switched, int all) { return BytesPerSecond{for_copies > 0 ? std::min(link.value / switched, for_copies * used / all) : link.value / switched}; };
  r.to_device = copies(c.gpu.host_to_device, sharing, used);
  r.to_host = copies(c.gpu.device_to_host, sharing, used);
  r.to_device_alone = copies(c.gpu.host_to_device, 1, 1);
  r.to_host_alone = copies(c.gpu.device_to_host, 1, 1);
  r.pageable = cpu.pageable_fraction;
  r.update = BytesPerSecond{cpu.update_bandwidth.value > 0 ? cpu.update_bandwidth.value / used : defaults().update_fraction * dram};
  r.core = BytesPerSecond{core_of(cpu)};
  r.crowding = std::max(1.0, static_cast<double>(cpu.numa_nodes > 0 ? cpu.numa_nodes : cpu.sockets) / used);
  r.pageable_most = defaults().pageable;
  r.fresh = defaults().fresh;
  r.fresh_core = defaults().fresh_core;
  r.nvme_read = BytesPerSecond{c.node.nvme.read.value / used};
  r.nvme_write = BytesPerSecond{c.node.nvme.write.value / used};
  return r;
}

}  // namespace rehearse::hwmodels
