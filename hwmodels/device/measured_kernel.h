// One kernel that somebody measured on a GPU, and how far it speaks for its neighbours.
// Leaves out what is made of them (measured_points.h).
#pragma once

#include <cstdint>

#include "sim/model/kernel.h"

namespace rehearse::hwmodels {

/// Burst: a cold microbenchmark of one kernel. Sustained: a training step at the power limit.
enum class ClockState : std::uint8_t { sustained, burst };

struct MeasuredKernel {
  model::KernelSpec kernel;
  double seconds = 0;
  ClockState clock = ClockState::burst;  // how hot the GPU was
};

/// In octaves of a kernel's sizes (m, n, k, batch; sequence and heads; bytes). 0: a point speaks only for itself.
struct Reach {
  double gemm = 1, attention = 1, memory = 2;
};

}  // namespace rehearse::hwmodels
