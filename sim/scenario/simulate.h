// A whole simulation: scenario -> plan -> costs -> time and memory -> result. A pure function of the scenario.
// Leaves out reading scenarios (scenario.h) and showing results (sim/report).
#pragma once

#include <algorithm>
#include <memory>

#include "sim/executor/memory.h"
#include "sim/executor/memory_cache.h"
#include "sim/executor/timing.h"
#include "sim/scenario/flops.h"
#include "sim/scenario/scenario.h"

namespace rehearse::scenario {

struct ClassResult {
  std::string name;
  int ranks = 1;
  std::int64_t parameters = 0;
  executor::ClassMemory memory;
  executor::ClassTiming timing;
  Bytes context, communicators, misc;      // on the device, outside the caching allocator
  Bytes unified;                           // the same: what of unified memory has room there
  bool needs_more = false;                 // more than the simulated allocator's addresses: memory is a lower bound
  Bytes peak_device() const { return memory.peak_reserved + context + communicators + misc + unified; }
};

/// Bytes that one node's ranks keep in host memory and on NVMe.
struct HostLedger {
  Bytes pinned, pageable, nvme;
  Bytes ram() const { return pinned + pageable; }
  /// The most of each that this one and another node have: who has most NVMe need not be who has most RAM.
  void cover(const HostLedger& node) {
    if (node.ram() > ram()) pinned = node.pinned, pageable = node.pageable;
    nvme = std::max(nvme, node.nvme);
  }
};

struct Result {
  bool fits = true;
  double step_time = 0;                    // seconds
  double shortest_step = 0;                // seconds, only if asked for: no step is shorter (sim/executor/shortest_step.h)
  double tokens_per_second = 0, samples_per_second = 0;
  FlopCount flops;
  double peak_flops_per_gpu = 0;           // dense peak of the precision used
  std::vector<ClassResult> classes;
  std::size_t critical_class = 0, fullest_class = 0;
  HostLedger host;                         // RAM of the node that keeps most there, NVMe of the one that keeps most there
  std::string deadlock;
  std::int64_t instructions = 0;
  std::vector<std::string> notes;
  plan::Plan plan;                         // kept for explain and traces
  std::vector<executor::Slice> trace;

  double mfu() const { return flops.model_causal / step_time / peak_flops_per_gpu; }
};

struct SimulateOptions {
  bool time = true, memory = true;
  bool bound = false;        // shortest_step as well: for searches
  int memory_steps = 2;      // 1: memory of a job that ends after its first step
  bool only_fits = false;    // memory only as far as `fits` asks for: ends where the first class has run out, keeps no peaks of what it needs
  bool unfold = false;       // simulate every rank: the oracle of the folding, for small clusters
  bool trace = false, timeline = false;
  bool shortcuts = true;     // off: every instruction and allocation is executed: the oracle of the shortcuts
  executor::Ablation ablation;
  executor::MemoryCache* memory_cache = nullptr;  // not owned: shared by the points of a sweep. Changes no number
};

/// The GPU as the framework's library uses it. The parameters of AMD's products are those of the best kernels that a search has found: PyTorch takes
/// what hipBLASLt's heuristics choose, Transformer Engine's jobs there have had theirs searched for (MLPerf's submissions). 8-bit products are
/// fitted without a search.
hwmodels::Gpu gpu_of(const Scenario& scenario);

/// What the caching allocator of a rank class is told; its limit is what context, libraries and NCCL leave of the device.
hwmodels::AllocatorSettings allocator_settings(const Scenario& scenario, const ClassResult& rank_class);

/// Precondition: problems_of(scenario) is empty. Throws ConfigError where a step would take longer than can be counted.
Result simulate(const Scenario& scenario, const SimulateOptions& options = {});

}  // namespace rehearse::scenario
