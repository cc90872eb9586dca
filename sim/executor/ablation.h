// Mechanisms that can be switched off, one by one or together, to see what each is worth (`validate --without`). Leaves out who heeds a
// switch: costs.h (kernels, communication, contention), sim/scenario/simulate.cpp (the others).
#pragma once

#include <array>
#include <string_view>

namespace rehearse::executor {

struct Ablation {
  bool contention = true;
  bool communication = true;
  bool kernels = true;
  bool host = true;
  bool spread = true;
  bool waves = true;
  bool power = true;
  bool segments = true;
  bool overheads = true;
};

struct AblationSwitch {
  std::string_view name;
  bool Ablation::*on;
  std::string_view what;   // with it
};

inline constexpr std::array<AblationSwitch, 9> kAblationSwitches{{
    {"contention", &Ablation::contention, "kernels and collectives slow each other"},
    {"communication", &Ablation::communication, "collectives and messages take time"},
    {"kernels", &Ablation::kernels, "kernels take time"},
    {"host", &Ablation::host, "the host thread takes time"},
    {"spread", &Ablation::spread, "the slowest of many GPUs sets the pace"},
    {"waves", &Ablation::waves, "a last wave of tiles that does not fill the GPU takes as long as a full one"},
    {"power", &Ablation::power, "the power limit lowers the clock"},
    {"segments", &Ablation::segments, "the caching allocator reserves more than is allocated"},
    {"overheads", &Ablation::overheads, "context, libraries and NCCL take device memory"},
}};

}  // namespace rehearse::executor
