#include "hwmodels/topology/host.h"

#include <algorithm>

namespace rehearse::hwmodels {
namespace {

// DRAM that copies reach, of the peak: STREAM reaches 75-85 % (hwmodels/data/README.md).
constexpr double kCopyFraction = 0.8;
// DRAM that a CPU optimizer reaches, of the peak: DeepSpeed's CPU Adam updates 10 B parameters in 2.57 s on two Xeon 8168
// (12 channels DDR4-2666, 256 GB/s), 30 bytes each. Source: Ren et al. 2021 (ZeRO-Offload), table 4.
constexpr double kUpdateFraction = 0.46;

}  // namespace

HostRates host_rates(const ClusterDescription& c) {
  HostRates r;
  const int used = std::max(1, c.gpus_per_node), sharing = std::clamp(c.node.pcie.gpus_per_switch, 1, used);
  const CpuDesign& cpu = c.node.cpu;
  const double dram = cpu.memory_bandwidth.value / used, for_copies = cpu.copy_bandwidth.value > 0 ? cpu.copy_bandwidth.value / used : kCopyFraction * dram;
  auto copies = [&](BytesPerSecond alone) { return BytesPerSecond{for_copies > 0 ? std::min(alone.value / sharing, for_copies) : alone.value / sharing}; };
  r.to_device = copies(c.gpu.host_to_device);
  r.to_host = copies(c.gpu.device_to_host);
  r.pageable = cpu.pageable_fraction;
  r.update = BytesPerSecond{cpu.update_bandwidth.value > 0 ? cpu.update_bandwidth.value / used : kUpdateFraction * dram};
  r.nvme_read = BytesPerSecond{c.node.nvme.read.value / used};
  r.nvme_write = BytesPerSecond{c.node.nvme.write.value / used};
  return r;
}

}  // namespace rehearse::hwmodels
