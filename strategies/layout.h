// How the ranks of a job are laid out: the world size factored into axes, the order of the axes, and every
// process group. Leaves out which collectives run on the groups (data/, layer/, pipeline/) and what the links
// between nodes can do (hwmodels).
#pragma once

#include <cstdint>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/communication.h"
#include "sim/core/error.h"

namespace rehearse::strategies {

using Rank = int;

/// How many ways each thing is split. world = tensor x context x data x pipeline; the experts' axes are
/// folded inside tensor x context x data ("parallel folding": Megatron-Core MoE README).
struct Degrees {
  int tensor = 1, context = 1, data = 1, pipeline = 1, expert = 1, expert_tensor = 1;
  int context_ulysses = 1;  // ranks of a context group that exchange heads; the others of the group form a ring
  // Groups that are cut in two, for what is done inside nodes first; 0: none is.
  int data_secondary = 0;  // neighbours that share a second copy of the weights (ZeRO++ hpZ)
  int data_inside = 0;     // neighbours of the sharing ranks that reduce gradients among themselves first (ZeRO++ qgZ)
  int expert_inside = 0;   // neighbours of an expert group that exchange tokens first (hierarchical all-to-all)
  int data_shard =
      0;  // ranks of one data-parallel group that share a sharded state; 0: all of `data` (no replicas)

  int world() const { return tensor * context * data * pipeline; }
  int shard() const { return data_shard > 0 ? data_shard : data; }
  int replicate() const { return data / shard(); }
  int expert_data() const { return tensor * context * data / (expert * expert_tensor); }
  friend bool operator==(const Degrees&, const Degrees&) = default;
};

/// Who talks to whom. The groups of one axis are disjoint and cover the world, except `embedding` and `mirror`.
enum class Axis : std::uint8_t {
  tensor,
  context,
  context_ulysses,  // neighbours of a context group that exchange heads for tokens (hybrid of all-to-all and ring)
  context_ring,     // one of each such set: the ring around them
  data,
  data_shard,
  data_replicate,
  data_context,  // data x context: gradients are summed over it, Megatron's distributed optimizer shards over
                 // it
  data_shard_context,  // FSDP shards over it
  data_secondary,      // neighbours of data_shard_context that hold a second copy of the weights together
  data_inside,         // neighbours of data_shard_context, and one of each such set
  data_across,
  pipeline,
  model,  // tensor x pipeline: the gradient norm is summed over it
  expert,
  expert_inside,  // neighbours of an expert group, and one of each such set
  expert_across,
  expert_tensor,
  expert_data,
  embedding,  // first and last stage, which share tied embeddings; ranks of other stages are in no group
  mirror,     // stages s and p - 1 - s, which hold the same two stages of a model that is held twice (DualPipe);
              // the middle stage of an odd number is in no group
  world,
  count_
};
std::string_view name_of(Axis axis);

/// Where a rank stands on each axis; `data` = data_replicate * shard degree + data_shard.
struct Coordinates {
  int tensor = 0, context = 0, data_shard = 0, data_replicate = 0, pipeline = 0;
  friend bool operator==(const Coordinates&, const Coordinates&) = default;
};
struct ExpertCoordinates {
  int expert_tensor = 0, expert = 0, expert_data = 0, pipeline = 0;
  friend bool operator==(const ExpertCoordinates&, const ExpertCoordinates&) = default;
};

/// Orders are written fastest axis first: ranks that differ only in the first axis are neighbours.
///   Megatron's default "tp-cp-ep-dp-pp" (megatron/core/parallel_state.py, RankGenerator);
///   torchtitan's mesh pp, dp_replicate, dp_shard, cp, tp (distributed/parallel_dims.py, slowest first) nests
///   the same way.
inline constexpr std::string_view kMegatronOrder = "tp-cp-ep-dp-pp";
inline constexpr std::string_view kTorchtitanOrder = "tp-cp-ep-dp_shard-dp_replicate-pp";

/// Do ranks that differ in another degree lie between the stages of a pipeline, and more of them beyond?
bool stages_are_between(const Degrees& degrees, std::string_view order);

/// Every reason why these degrees cannot be laid out on `world_size` ranks, with the nearest legal values as
/// the fix. Keys are the scenario's ("parallelism.tensor"); the caller fills in where they stand. `order` ""
/// means Megatron's.
std::vector<Diagnostic> problems_of(const Degrees& degrees, int world_size, std::string_view order = {}, int gpus_per_node = 0);

/// The data-parallel degree that fills the world, if tensor x context x pipeline divides it.
std::optional<int> data_degree_to_fill(const Degrees& degrees, int world_size);

class Layout {
 public:
  /// Precondition: problems_of(degrees, degrees.world(), order) is empty.
  explicit Layout(const Degrees& degrees, std::string_view order = {});

  const Degrees& degrees() const { return degrees_; }
  int world_size() const { return world_size_; }

  Coordinates coordinates_of(Rank rank) const;
  /// Its coordinate along the pipeline.
  int stage_of(Rank rank) const;
  Rank rank_of(const Coordinates& at) const;
  ExpertCoordinates expert_coordinates_of(Rank rank) const;
  Rank rank_of(const ExpertCoordinates& at) const;

  /// Members in ascending order; empty when the rank is in no group of that axis (middle stages and
  /// `embedding`).
  std::vector<Rank> group_of(Axis axis, Rank rank) const;
  int size_of(Axis axis) const;
  bool is_member(Axis axis, Rank rank) const;

  /// How the rank's group lies on nodes of `gpus_per_node` consecutive ranks. Constant time where axes and
  /// nodes nest (every usual layout), else in the size of the group. A rank outside gets the shape of a group
  /// of one.
  GroupShape shape_of(Axis axis, Rank rank, int gpus_per_node) const;

  /// The rank of the stage `offset` stages later in the same pipeline, wrapping around at the ends: chunks of
  /// an interleaved schedule go from the last stage back to the first.
  Rank pipeline_neighbour(Rank rank, int offset) const;
  static bool share_node(Rank a, Rank b, int gpus_per_node) { return a / gpus_per_node == b / gpus_per_node; }

 private:
  /// Ranks that differ in this dimension are `stride` apart.
  struct Dimension {
    std::string_view name;
    int size = 1;
    int stride = 1;
    int index_of(Rank rank) const { return rank / stride % size; }
  };
  const Dimension& dense(std::string_view name) const;
  const Dimension& folded(std::string_view name) const;
  Rank base_of(Axis axis, Rank rank) const;
  std::optional<GroupShape> nested_shape(Axis axis, int gpus_per_node) const;
  GroupShape counted_shape(Axis axis, Rank rank, int gpus_per_node) const;

  Degrees degrees_;
  int world_size_;
  std::vector<Dimension> dense_;   // tp, cp, dp_shard, dp_replicate, pp in the chosen order
  std::array<std::size_t, 5> places_{};   // of tp, cp, dp_shard, dp_replicate, pp in dense_
  std::vector<Dimension> folded_;  // the same ranks seen by the experts: etp, ep, edp_shard, dp_replicate, pp
  std::vector<std::vector<Dimension>> axes_;  // dimensions that vary inside a group, smallest stride first
};

}  // namespace rehearse::strategies
