#include "hwmodels/topology/host.h"

#include <algorithm>

namespace rehearse::hwmodels {
namespace {

// DRAM that copies reach, of the peak: STREAM reaches 75-85 % (hwmodels/data/README.md).
constexpr double kCopyFraction = 0.8;
// DRAM that a CPU optimizer reaches, of the peak: DeepSpeed's CPU Adam updates 10 B parameters in 2.57 s on two Xeon 8168
// (12 channels DDR4-2666, 256 GB/s), 30 bytes each. Source: Ren et al. 2021 (ZeRO-Offload), table 4.
constexpr double kUpdateFraction = 0.46;
// One thread's STREAM triad: 12.2 GB/s on a Xeon 8176 (Skylake-SP), 27.5 GB/s on an EPYC 7601. Source: De Gelas and Cutress, "Sizing Up
// Servers", AnandTech 2017, memory subsystem: bandwidth. A Xeon's core is bound by its misses in flight over the latency of its
// DRAM. DeepSpeed's CPU Adam on one core of an EPYC with Zen 5 moves 48 GB/s (calibrate/ground_truth/cpu_optimizer.py).
constexpr double kIntelCore = 12.2e9, kAmdCore = 27.5e9;
// torch.optim.Adam on the CPU updates 10 B parameters in 14.76 s on the two Xeon 8168 (the same table): 80 bytes of traffic per element
// at that rate take 6.8 s, so the 8 that lie in new tensors come at 10 GB/s. The kernel zeroes their pages, 0.4 us each.
constexpr double kFresh = 10e9;

double core_of(const CpuDesign& cpu) {
  if (cpu.core_bandwidth.value > 0) return cpu.core_bandwidth.value;
  return cpu.vendor == CpuVendor::intel ? kIntelCore : cpu.vendor == CpuVendor::amd ? kAmdCore : 0;
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

HostRates host_rates(const ClusterDescription& c) {
  HostRates r;
  const int used = std::max(1, c.gpus_per_node), sharing = std::clamp(c.node.pcie.gpus_per_switch, 1, used);
  const CpuDesign& cpu = c.node.cpu;
  const double dram = cpu.memory_bandwidth.value / used, for_copies = cpu.copy_bandwidth.value > 0 ? cpu.copy_bandwidth.value / used : kCopyFraction * dram;
  const auto copies = [&](BytesPerSecond link, int switched, int all) { return BytesPerSecond{for_copies > 0 ? std::min(link.value / switched, for_copies * used / all) : link.value / switched}; };
  r.to_device = copies(c.gpu.host_to_device, sharing, used);
  r.to_host = copies(c.gpu.device_to_host, sharing, used);
  r.to_device_alone = copies(c.gpu.host_to_device, 1, 1);
  r.to_host_alone = copies(c.gpu.device_to_host, 1, 1);
  r.pageable = cpu.pageable_fraction;
  r.update = BytesPerSecond{cpu.update_bandwidth.value > 0 ? cpu.update_bandwidth.value / used : kUpdateFraction * dram};
  r.core = BytesPerSecond{core_of(cpu)};
  r.crowding = std::max(1.0, static_cast<double>(cpu.numa_nodes > 0 ? cpu.numa_nodes : cpu.sockets) / used);
  r.fresh = BytesPerSecond{kFresh};
  r.nvme_read = BytesPerSecond{c.node.nvme.read.value / used};
  r.nvme_write = BytesPerSecond{c.node.nvme.write.value / used};
  return r;
}

}  // namespace rehearse::hwmodels
