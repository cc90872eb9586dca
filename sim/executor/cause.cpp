// Names of the causes that a step's time is accounted to.
#include "sim/executor/timing.h"

namespace rehearse::executor {

std::string_view name_of(Cause c) {
  switch (c) {
    case Cause::gemm: return "matrix products";
    case Cause::attention: return "attention";
    case Cause::scan: return "scans and delta rules";
    case Cause::memory_bound: return "memory-bound kernels";
    case Cause::optimizer: return "optimizer";
    case Cause::other_compute: return "other kernels";
    case Cause::tensor: return "exposed tensor-parallel communication";
    case Cause::context: return "exposed context-parallel communication";
    case Cause::expert: return "exposed expert communication";
    case Cause::data: return "exposed data-parallel communication";
    case Cause::pipeline_message: return "exposed pipeline messages";
    case Cause::bubble: return "waiting for other ranks";
    case Cause::host: return "host-bound";
    case Cause::host_work: return "optimizer on the CPU";
    case Cause::copy: return "exposed copies";
    case Cause::idle: return "idle";
    case Cause::count_: break;
  }
  return "?";
}

}  // namespace rehearse::executor
