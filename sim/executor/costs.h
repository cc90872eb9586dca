// What every distinct piece of work of a plan costs on given hardware: looked up once per shape, before anything runs.
// Leaves out when work runs and what it contends with (timing.h).
#pragma once

#include <vector>

#include "hwmodels/device/kernel_model.h"
#include "hwmodels/network/network.h"
#include "hwmodels/topology/host.h"
#include "sim/plan/plan.h"

namespace rehearse::executor {

/// Shares of one GPU's resources that a piece of work uses while it runs at full speed.
struct Load {
  float sm = 0, hbm = 0, nvlink = 0, nic = 0, pcie = 0;
};

/// `occupies`: holds its SMs whatever else runs (collectives); kernels share what is left.
struct Priced {
  std::int64_t duration = 0;  // picoseconds, alone
  Load load;
  bool occupies = false;
};

struct CostTable {
  std::vector<hwmodels::KernelCost> kernel_costs;
  std::vector<Priced> kernels;                              // by kernel spec
  std::vector<std::vector<Priced>> collectives;             // by class, collective spec
  std::vector<std::vector<hwmodels::CommunicationCost>> collective_costs;
  std::vector<std::vector<Priced>> messages;                // by class, message spec
  std::vector<Priced> copies;
  std::vector<std::int64_t> host_works;                     // picoseconds
};

struct Hardware {
  const hwmodels::KernelModel& kernels;
  const hwmodels::Network& network;
  hwmodels::HostRates host{};            // without it copies have the GPU's own rate, and host work takes no time
};

/// The same mechanisms with one switched off: what each is worth (validate --without).
struct Ablation {
  bool contention = true;      // kernels and collectives slow each other
  bool communication = true;   // collectives and messages take time
  bool kernels = true;         // kernels take time
  bool host = true;            // the host thread takes time
  bool spread = true;          // the slowest of many GPUs sets the pace
};

CostTable price(const plan::Plan& plan, const Hardware& hardware, const Ablation& ablation = {});

}  // namespace rehearse::executor
