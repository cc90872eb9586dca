// What every distinct piece of work of a plan costs on given hardware: looked up once per shape, before anything runs.
// Leaves out when work runs and what it contends with (timing.h).
#pragma once

#include <vector>

#include "hwmodels/device/kernel_model.h"
#include "hwmodels/network/network.h"
#include "hwmodels/topology/host.h"
#include "sim/executor/ablation.h"
#include "sim/plan/plan.h"

namespace rehearse::executor {

/// Shares of one GPU's resources that a piece of work uses while it runs at full speed.
struct Load {
  float sm = 0, hbm = 0, nvlink = 0, nic = 0, pcie = 0;
};

/// `occupies`: holds its SMs whatever else runs (collectives); kernels share what is left, or, with `late_tiles`, keep their
/// rate on the SMs that they get and run the tiles of the others afterwards.
struct Priced {
  std::int64_t duration = 0;  // picoseconds, alone
  Load load;
  bool occupies = false;
  float beside_kernels = 1;   // of work that occupies: most of its own speed that it keeps while kernels run
  float late_tiles = 0;       // of a kernel: time of the tiles whose SMs are held when it begins, of its duration
};

struct CostTable {
  std::vector<hwmodels::KernelCost> kernel_costs;           // as `kernels`
  std::vector<Priced> kernels;                              // by kernel spec; a list for every pace, one after the other
  std::vector<std::size_t> first_kernel;                    // by class, where its list begins; empty: all have the only one
  std::vector<std::vector<Priced>> collectives;             // by class, collective spec
  std::vector<std::vector<hwmodels::CommunicationCost>> collective_costs;
  std::vector<std::vector<Priced>> messages;                // by class, message spec
  std::vector<Priced> copies;
  std::vector<std::int64_t> host_works;                     // picoseconds

  std::size_t kernel_index(std::size_t rank_class, std::size_t spec) const { return first_kernel.empty() ? spec : first_kernel[rank_class] + spec; }
  const Priced& kernel(std::size_t rank_class, std::size_t spec) const { return kernels[kernel_index(rank_class, spec)]; }
  const hwmodels::KernelCost& kernel_cost(std::size_t rank_class, std::size_t spec) const { return kernel_costs[kernel_index(rank_class, spec)]; }
};

/// What the GPU's parameters and the framework's profile say of work that runs at once; names and defaults as in
/// hwmodels/device/kernel_parameters.h.
struct Interference {
  double sms = 1;        // of the GPU
  double sm_weight = 1;  // SMs lost to a channel
  double hbm = 1;        // of the datasheet bandwidth, reached together
  double collective = 1, copy = 1;  // rates beside kernels
  double late_tiles = 0;            // of products
  explicit Interference(const hwmodels::KernelModel& kernels, double collective_sm_factor = 1);
  Priced kernel_of(const hwmodels::KernelCost& cost) const;
  Priced product_of(const hwmodels::KernelCost& cost) const;   // a GEMM or a grouped GEMM
  Priced collective_of(const hwmodels::CommunicationCost& cost) const;
  Priced copy_of(std::int64_t picoseconds) const;  // one direction

 private:
  float of_hbm(double share) const;
};

struct Hardware {
  const hwmodels::KernelModel& kernels;
  const hwmodels::Network& network;
  hwmodels::HostRates host{};            // without it copies have the GPU's own rate, and host work takes no time
  double collective_sm_factor = 1;       // SMs that collectives take from kernels, of what the GPU's own parameters say
  std::vector<hwmodels::Pace> paces{};   // of the GPUs of each class; empty: that of `kernels`
};

CostTable price(const plan::Plan& plan, const Hardware& hardware, const Ablation& ablation = {});

/// Seconds of one step of a class in which nothing overlaps: all that it issues, one after the other, alone on its resources.
double serial_seconds(const plan::Plan& plan, const CostTable& costs, std::size_t rank_class);

}  // namespace rehearse::executor
