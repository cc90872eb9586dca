// NCCL, loaded when the program runs: communicators by the shape of their groups, and one call per collective.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <vector>

#include "calibrate/measurements.h"
#include "calibrate/probe/team.h"

namespace rehearse::calibrate {

/// A group that this process belongs to.
struct NcclGroup {
  void* communicator = nullptr;  // null: this process is in none of the groups
  int rank = 0, size = 1;
};

class Nccl {
 public:
  virtual ~Nccl() = default;
  virtual std::string version() const = 0;
  /// What NCCL wrote about its channels when the world's communicator was made.
  virtual std::vector<std::string> channels() const = 0;
  /// The group of this process among all groups of the shape in `parameters`; made once per shape. Called by every process.
  /// `groups`: how many of them run.
  virtual NcclGroup group(const Facts& parameters, int ranks_per_node) = 0;
  /// Enqueues one collective of `bytes` in nccl-tests' sense (operations.cpp). `send` and `receive` hold that many bytes.
  virtual void enqueue(const NcclGroup& group, const std::string& collective, const std::string& pattern, const std::string& dtype, std::int64_t bytes,
                       const void* send, void* receive, cudaStream_t stream) = 0;
};

/// Connects all processes of the team. Throws NotPossible when NCCL is not there, in every process.
std::unique_ptr<Nccl> open_nccl(Team& team);

}  // namespace rehearse::calibrate
