#include "sim/executor/contention.h"

#include <algorithm>
#include <array>

namespace rehearse::executor {

void share_gpu(std::span<const Priced* const> work, std::span<double> rate) {
  const std::size_t n = work.size();
  double held = 0, wanted = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const Priced& w = *work[i];
    (w.occupies ? held : wanted) += static_cast<double>(w.load.sm);
  }
  const double left = std::max(0.05, 1.0 - held);
  std::array<double, plan::kStreams> cap;
  for (std::size_t i = 0; i < n; ++i) {
    const Priced& w = *work[i];
    cap[i] = !w.occupies ? std::min(1.0, (w.late_tiles > 0 ? 1.0 : left) / wanted) : wanted > 0 ? static_cast<double>(w.beside_kernels) : 1.0;
    rate[i] = -1;
  }
  constexpr float Load::* kShared[] = {&Load::hbm, &Load::nvlink, &Load::nic, &Load::pcie};
  std::array<double, 4> room{1.0, 1.0, 1.0, 1.0};
  std::array<bool, plan::kStreams> frozen{};
  for (std::size_t open = n; open > 0;) {
    // The tightest constraint among the open ones: a resource's equal share, or somebody's own cap.
    double level = 2;
    for (std::size_t j = 0; j < 4; ++j) {
      double sum = 0;
      for (std::size_t i = 0; i < n; ++i)
        if (rate[i] < 0) sum += static_cast<double>(work[i]->load.*kShared[j]);
      if (sum > 0) level = std::min(level, room[j] / sum);
    }
    for (std::size_t i = 0; i < n; ++i)
      if (rate[i] < 0) level = std::min(level, cap[i]);
    level = std::max(level, 0.02);
    bool froze = false;
    for (std::size_t i = 0; i < n; ++i) {
      if (rate[i] >= 0) continue;
      bool tight = cap[i] <= level;
      for (std::size_t j = 0; j < 4 && !tight; ++j) {
        const double mine = static_cast<double>(work[i]->load.*kShared[j]);
        double sum = 0;
        for (std::size_t k = 0; k < n; ++k)
          if (rate[k] < 0) sum += static_cast<double>(work[k]->load.*kShared[j]);
        tight = mine > 0 && room[j] / sum <= level * (1 + 1e-12);
      }
      if (!tight) continue;
      frozen[i] = true;
      froze = true;
    }
    for (std::size_t i = 0; i < n; ++i) {
      if (rate[i] >= 0 || (froze && !frozen[i])) continue;
      rate[i] = level;
      frozen[i] = false;
      for (std::size_t j = 0; j < 4; ++j) room[j] = std::max(0.0, room[j] - level * static_cast<double>(work[i]->load.*kShared[j]));
      --open;
    }
  }
}

bool tiles_are_late(const Priced& kernel, double held) {
  return kernel.late_tiles > 0 && held > 0 && held + static_cast<double>(kernel.load.sm) > 1;
}

}  // namespace rehearse::executor
