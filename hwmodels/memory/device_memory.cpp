#include "hwmodels/memory/device_memory.h"

#include "sim/core/contract.h"

namespace rehearse::hwmodels {
namespace {

Bytes context_bytes(const Gpu& gpu, ModuleLoading loading) {
  if (loading == ModuleLoading::eager) return 942_MiB;  // eager, A100, torch 2.1: 0.92 GiB
  switch (gpu.compute_capability) {
    case 80:
      return 481_MiB;  // lazy, A100, torch 2.1: 0.47 GiB
    case 86:
      return 256_MiB;  // RTX 3090, torch 2.7 cu128
    case 89:
      return 426_MiB;  // RTX 6000 Ada, torch 2.10 cu130
    default:
      return 460_MiB;  // derived: the middle of 0.3-0.5 GiB plus kernels actually loaded
  }
}

}  // namespace

Bytes cublas_workspace(int compute_capability) {
  EXPECTS(compute_capability > 0);
  // ":4096:2:16:8" reads two buffers of 4096 KiB and eight of 16 KiB.
  return compute_capability >= 90 ? 32_MiB : 2 * 4096_KiB + 8 * 16_KiB;
}

Bytes transformer_engine_workspace(int compute_capability) {
  EXPECTS(compute_capability > 0);
  return compute_capability >= 90 ? 32_MiB : 4_MiB;
}

DeviceOverheads device_overheads(const Gpu& gpu, ModuleLoading loading) {
  return {.context = context_bytes(gpu, loading),
          .misc = 102_MiB,  // derived: 0.1 GiB
          // hipBLAS on gfx94x and gfx95x: 128 MiB (same source as cublas_workspace)
          .cublas_workspace =
              gpu.architecture == Architecture::cdna3 ? 128_MiB : cublas_workspace(gpu.compute_capability)};
}

}  // namespace rehearse::hwmodels
