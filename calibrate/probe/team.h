// The processes of one measurement, one per GPU: who they are and how they agree on numbers. Works with mpirun, srun and
// without either: ranks come from the environment, the first meeting place is a file that all can see, then TCP.
// Leaves out collectives on GPUs (cuda/).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rehearse::calibrate {

class Team {
 public:
  virtual ~Team() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Everyone's largest of each number. Also a barrier.
  virtual std::vector<double> largest(const std::vector<double>& mine) = 0;
  /// Rank 0's text.
  virtual std::string from_first(const std::string& mine) = 0;
};

/// One process alone.
std::unique_ptr<Team> single_process();

/// Where a process stands, as mpirun (Open MPI, MPICH), srun or torchrun tell it.
struct RankInfo {
  int rank = 0, size = 1, local_rank = 0;
};
/// Looks variables up by `get` (null = not set). None when there is one process; throws ConfigError for half a set.
std::optional<RankInfo> rank_from_environment(const std::function<const char*(const char*)>& get);

/// Meets the others through `file` (on a file system that all see; made by rank 0, removed once all have come).
/// Throws NotPossible when they do not come within `patience_s`.
std::unique_ptr<Team> meet_through_file(const RankInfo& me, const std::string& file, double patience_s);

}  // namespace rehearse::calibrate
