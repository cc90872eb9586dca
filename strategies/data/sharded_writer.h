// What every writer of sharded parameters needs: a unit's slots and sizes, collectives over the groups that share it, and
// letting go of what was gathered. Leaves out when units are gathered and how their gradients are reduced (sharded.cpp,
// megatron_fsdp.cpp).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "strategies/data/data_parallel.h"

namespace rehearse::strategies {

class ShardedWriter : public DataParallelWriter {
 public:
  void begin_step() override;
  void after_forward(std::size_t unit, int micro_batch) override;
  void end_evaluation() override;

 protected:
  /// `reduce`: in which gradients are reduced, where the user does not say.
  ShardedWriter(Stage& stage, DType reduce);
  /// In which layers are computed.
  static DType compute_dtype(const Stage& stage);

  // Slots of the unit frame beyond one per weight.
  enum Extra : std::uint32_t { kGathered, kUnsharded, kEvent, kShard, kAccumulated, kFetched, kBucket, kReduced, kParameters };
  static_assert(kParameters < kForeachSlot);
  static std::uint32_t extra(const Unit& u, Extra which) { return static_cast<std::uint32_t>(u.tape->weights.size()) + which; }

  /// One rank's part of a number of elements, rounded up.
  std::int64_t divided(std::int64_t elements, Part part) const { return (elements + stage_.sizes.sharing(part) - 1) / stage_.sizes.sharing(part); }
  /// Bytes of this rank's shards of all parameters, as they are kept.
  std::int64_t parameter_shards() const;
  std::int64_t gathered_bytes(const Unit& u, Part part = Part::all) const { return shared_bytes(u, parameter_bytes_, part) - (part == Part::experts ? 0 : u.tape->narrow_elements() * (parameter_bytes_ - 1)); }
  /// Parameters of a unit that ranks share. FSDP1's flat parameters leave bitsandbytes' quantisation states where they are, whole on every GPU
  /// (bitsandbytes nn/modules.py, fix_4bit_weight_quant_state_from_module; PyTorch _flat_param.py flattens parameters only).
  std::int64_t shared_bytes(const Unit& u, std::int64_t element, Part part = Part::all) const { return u.tape->parameter_bytes(element, part) - (whole_states_ ? u.tape->packed_states(part) : 0); }
  std::int64_t whole_states() const;
  /// Blocks are shared by units of equal sizes that train the same of their weights.
  std::string key(const char* what, const Unit& u) const;

  /// A collective over each group that shares some of a unit. `bytes`: of each part, dense and experts. It waits for `stream`, and `stream` for it;
  /// before it run all that the host has issued to the group earlier, whatever stream they came from and whatever they wait for: gathers stand
  /// behind reductions whose gradients are still to be made. Source: PyTorch ProcessGroupNCCL.cpp (one NCCL stream per group and device), and NCCL
  /// itself, whose kernels of one communicator never run beside each other (enqueue.cc, ncclLaunchPrepare: launches wait for the communicator's stream).
  void over_groups(plan::BlockWriter& w, CollectiveKind kind, const std::array<std::int64_t, 2>& bytes, const char* name, plan::Stream stream, int sync);
  /// Sums reduced shards over the replicas, behind their reduction.
  void sum_over_replicas(plan::BlockWriter& w, std::int64_t bytes);
  /// Compute waits for every reduction so far.
  static void wait_for_reductions(plan::BlockWriter& w);
  /// Of a unit that reduces none: a tied table's gradient may lie there, though another unit reduces it.
  void drop_gradients(const Unit& u);
  /// Lets go of a unit's gathered parameters.
  void release(std::size_t index, plan::Phase phase);

  std::int64_t parameter_bytes_ = 2, reduce_bytes_ = 4;   // per element, on the wire
  bool reshard_ = true;                                   // after forward
  bool whole_states_ = false;                             // of quantisation: on every rank
  plan::Frame events_ = plan::Frame::own;                 // which frame of its calls is the program's persistent one
  std::vector<bool> gathered_, kept_;                     // by unit: under way or there; there for uses to come

 private:
  mutable std::map<const Tape*, std::string> weights_;    // of units, as the names of their blocks have them
};

}  // namespace rehearse::strategies
