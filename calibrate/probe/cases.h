// What is to be measured on a machine of a given shape, most telling first. Leaves out how long it may take (session.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "calibrate/measurements.h"

namespace rehearse::calibrate {

/// One series to come.
struct Case {
  std::string operation;
  Facts parameters;
  int tier = 0;  // 0: also in a quick run; 1: in a default run; 2: only in a full run

  friend bool operator==(const Case&, const Case&) = default;
};

/// What the plan needs to know of the machine.
struct MachineShape {
  bool gpu = true;
  int ranks = 1;            // processes, one GPU each
  int ranks_per_node = 1;
  int compute_capability = 80;
  std::int64_t gpu_bytes = std::int64_t{16} << 30;   // free on the fullest GPU
  std::int64_t host_bytes = std::int64_t{16} << 30;  // of a node
  int cores = 1;
  bool directory = false;  // the user named one for the file tests

  int nodes() const { return (ranks + ranks_per_node - 1) / ranks_per_node; }
};

/// All cases, each once, sorted by tier; within a tier the operations take turns, so that a run that is cut off has
/// something of each.
std::vector<Case> planned_cases(const MachineShape& machine);

/// Cases of one family, in their own order.
std::vector<Case> gemm_cases(const MachineShape& machine);
std::vector<Case> attention_cases(const MachineShape& machine);
std::vector<Case> memory_kernel_cases(const MachineShape& machine);
std::vector<Case> launch_cases(const MachineShape& machine);
std::vector<Case> transfer_cases(const MachineShape& machine);
std::vector<Case> collective_cases(const MachineShape& machine);
std::vector<Case> overlap_cases(const MachineShape& machine);
std::vector<Case> host_cases(const MachineShape& machine);

/// GPUs that a case needs; 0 for cases of the host alone.
int gpus_of(const Case& c);

/// Members of group `group` of a collective's shape (group_shape() in operations.cpp), as ranks counted node by node.
/// Groups fill a node's GPUs in turn, then the next `nodes` nodes.
std::vector<int> group_members(const Facts& parameters, int group, int ranks_per_node);

/// Does `pattern` occur in the case's identity, or match it with * for anything? Several patterns: split at commas.
bool matches(const Case& c, const std::string& patterns);

/// Point `index` (from 1) of the Halton sequence in this base: fills (0, 1) evenly, whatever the number of points.
/// Source: Halton, Numerische Mathematik 2 (1960).
double halton(std::int64_t index, int base);

}  // namespace rehearse::calibrate
