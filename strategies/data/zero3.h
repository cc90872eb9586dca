// DeepSpeed's ZeRO-3: parameters gathered module by module, ahead of their use as far as a bucket and a limit allow, kept
// where they are used again soon (zero3_parameters.cpp); gradients reduced from a bucket (zero3_gradients.cpp); the optimizer
// goes over sub-groups (zero3.cpp). What is fetched and let go when is decided here as DeepSpeed decides it at run time, from
// the order of modules that it has recorded. ZeRO++ is in it: quantised gathers (qwZ), a second partition of the weights
// inside nodes (hpZ), gradients reduced by quantised all-to-alls in two steps (qgZ).
// Compared event by event with DeepSpeed itself (tests/oracles/deepspeed_zero3_order.py).
// Leaves out: modules that the traced order does not have (dropout of the model, an attention's own rotary module before transformers 4.45), padding
// of what is quantised.
// Sources: DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py (fetch_sub_module, release_sub_module),
// partition_parameters.py (all_gather_coalesced, free_param, _partition_param_sec, CUDAQuantizer), stage3.py,
// runtime/comm/coalesced_collectives.py; Wang et al. 2023 (ZeRO++, arXiv 2306.10209).
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "strategies/data/sharded_writer.h"
#include "strategies/layer/modules.h"

namespace rehearse::strategies {

class Zero3 final : public ShardedWriter {
 public:
  explicit Zero3(Stage& stage);

  void setup() override;
  std::int64_t hooks_above() const override { return persistence_; }
  void follow(std::vector<ModuleUse> uses) override;
  WeightGradient gradient_mode(bool) const override { return WeightGradient::first; }
  std::int64_t gradient_element_bytes() const override { return parameter_bytes_; }

  void begin_step() override;
  void before_forward(std::size_t, int) override {}
  void after_forward(std::size_t unit, int) override;
  void begin_module() override;
  void end_module(const ModuleUse& use, bool recorded, bool releases) override;
  void gradients_made(std::size_t unit, const std::vector<int>& weights, int micro_batch) override;
  void after_backward(std::size_t unit, int, bool, bool) override;
  void end_step() override;
  void end_evaluation() override;

 private:
  /// Of the bucket that gradients are put into.
  std::int64_t bucket_element_bytes() const { return profile().bucket_in_reduce_format ? reduce_bytes_ : parameter_bytes_; }
  enum class State : std::uint8_t { away, in_flight, available };
  enum ParameterSlot : std::uint32_t { kGatheredValues, kSecond, kSecondMade };
  struct Parameter {
    Part part = Part::dense;
    std::int64_t elements = 0, bytes = 0;
    std::int64_t tensors = 1;         // that it stands for, each gathered by itself
    std::uint32_t frame = 0;          // its gathered values; hpZ: its second shard too
    std::uint32_t saved_frame = 0;    // values that it has let go and autograd has saved
    bool graph_saves = false;         // what it is multiplied by saves its values, not itself (graph_saves)
    bool saved = false;
    bool persistent = false;          // small: gathered once a step
    bool gathers = true;              // false: this rank has all of it
    bool trainable = true;
    State state = State::away;
    std::size_t handle = 0;           // in flight
    std::int64_t fetched_for = -1;    // the last use that a fetch or prefetch was for
    bool has_second = false;          // hpZ: a shard of it lies in each group of neighbours
    bool on_disk = false;             // its shard comes from NVMe
  };
  /// Parameters on their way in one all-gather.
  struct Handle {
    std::vector<std::size_t> parameters;
    std::uint32_t frame = 0;
    std::int64_t elements = 0, bytes = 0, on_disk = 0;   // on_disk: of `bytes`
    bool second = false;              // from the second partition
    std::int64_t ranks = 1;           // that have a part of it
  };
  enum HandleSlot : std::uint32_t { kFlat, kArrived, kFetched, kFetchedEvent, kHandleSlots, kScales = kHandleSlots, kWideFlat, kQuantisedShard, kQuantisedHandleSlots };
  /// A gradient too large for the bucket: it waits where it was made.
  struct Waiting {
    std::size_t unit = 0;
    int weight = 0;
  };
  /// A gradient in the bucket, for reductions that take one tensor at a time (qgZ).
  struct Tensor {
    std::int64_t elements = 0, columns = 0;
    bool matrix = false;
  };

  Share my_share() const { return share(true, stored_bytes()); }

  // Parameters (zero3_parameters.cpp)
  std::size_t index_of(std::size_t unit, int weight) const;
  void list_parameters();
  bool graph_saves(const Weight& weight) const;
  void reset();
  void prefetch();
  void fetch(const std::vector<std::size_t>& wanted);
  void fetch_together(std::vector<std::size_t> away, Part part, bool second);
  void synchronise();
  void submit(const Handle& handle, Part part);
  void gather_quantised(plan::BlockWriter& w, const Handle& handle, Part part, std::int64_t shard);
  void gather_over(plan::BlockWriter& w, const Handle& handle, Part part, std::int64_t bytes, const char* name);
  void gather_tensor(plan::BlockWriter& w, const Handle& handle, Part part, std::int64_t bytes, const char* name);
  void copy_lists(plan::BlockWriter& w, std::int64_t bytes, Part part, int lists, plan::Stream stream);
  void arrive(std::size_t index);
  void compute_waits(const std::vector<std::size_t>& needed);
  void let_go(std::size_t index, plan::Phase phase, bool to_autograd = false);
  void free_saved(Parameter& p);
  void make_second(Parameter& p, plan::Phase phase);
  void drop_seconds();
  void gather_persistent();
  /// Whose memory a tensor comes from.
  plan::Stream pool_of(plan::Stream stream) const { return overlaps_ ? stream : plan::Stream::compute; }
  std::uint32_t handle_slots() const { return quantises_weights_ ? kQuantisedHandleSlots : kHandleSlots; }
  std::int64_t second_bytes(const Parameter& p) const { return (p.bytes + second_ - 1) / second_; }
  bool quantises(const Handle& handle) const { return quantises_weights_ && parameters_[handle.parameters.front()].gathers; }

  // Gradients (zero3_gradients.cpp)
  void into_bucket(std::size_t unit, int weight, const Weight& w);
  void reduce();
  void hold_host();
  void reductions_issued();
  void reduce_bucket(Part part, bool first, bool last);
  std::int64_t to_disk(std::int64_t elements, bool last) const;
  std::string to_disk_text(std::int64_t elements, bool last) const;
  std::int64_t shards_of_tensors() const;
  void copy_sums(plan::BlockWriter& w, std::int64_t shard, plan::Stream after, bool first, bool last);
  void reduce_tensors(bool first, bool last);
  void reduce_quantised(plan::BlockWriter& w, const Tensor& tensor);
  void reduce_alone(plan::BlockWriter& w, const Tensor& tensor);

  // The optimizer (zero3.cpp)
  std::vector<Share> sub_groups(const Share& mine);
  template <typename Found>
  void each_piece(Found found);
  void keep_on_disks();
  void step_on_device(const Share& mine);

  void elementwise(plan::BlockWriter& w, const char* name, std::int64_t read, std::int64_t written, plan::Stream stream) {
    w.kernel(builder().kernel({.kind = model::KernelKind::elementwise, .bytes_read = read, .bytes_written = written, .name = name}), host(), stream);
  }
  /// A call whose slots lie in frames of parameters and of fetches, those of events around collectives in the persistent one.
  template <typename Write>
  void append(const std::string& key, plan::Phase phase, std::uint32_t own, std::uint32_t unit, Write write) {
    const std::uint32_t id = stage_.block(key, write);
    if (id == plan::kNoFrame) return;
    plan::Call call{.block = id, .phase = phase};
    call.frames[static_cast<std::size_t>(plan::Frame::own)] = own;
    call.frames[static_cast<std::size_t>(plan::Frame::unit)] = unit;
    call.frames[static_cast<std::size_t>(plan::Frame::below)] = stage_.persistent;
    stage_.append(call);
  }

  static constexpr std::size_t kMostOngoing = 2;   // __max_ongoing_fetch_events
  static constexpr int kMostReductions = 2;        // max_param_reduce_events
  static constexpr std::uint32_t kReduced = Stage::kPersistentSlots - 28;   // events of the latest reductions
  static constexpr std::uint32_t kCopiedDown = Stage::kPersistentSlots - 39;
  static constexpr std::uint32_t kMade = Stage::kPersistentSlots - 16, kInterleaved = Stage::kPersistentSlots - 17, kTogether = Stage::kPersistentSlots - 18, kWide = Stage::kPersistentSlots - 19;

  std::int64_t prefetch_ = 0, most_live_ = 0, reuse_distance_ = 0, persistence_ = 0, bucket_ = 0, sub_group_ = 0;   // elements
  std::int64_t second_ = 1;                                                   // ranks of a second partition (hpZ); 1: there is none
  bool overlaps_ = true;                                                      // overlap_comm; false: streams of fetches and reductions are compute's own
  bool quantises_weights_ = false;                                            // qwZ
  bool quantises_gradients_ = false;                                          // qgZ
  std::vector<Parameter> parameters_;
  std::map<std::pair<std::size_t, int>, std::size_t> index_;                  // by unit and weight
  std::vector<std::vector<std::size_t>> uses_;                                // of a micro-batch's modules
  std::deque<std::pair<std::size_t, std::int64_t>> queue_;                    // parameters still to fetch, and for which use
  std::size_t step_ = 0;                                                      // uses so far
  std::int64_t live_ = 0;                                                     // elements gathered or on their way
  std::vector<Handle> handles_;
  std::deque<std::size_t> ongoing_;                                           // handles of the latest arrivals
  std::array<std::int64_t, 2> elements_{};                                    // in the bucket: dense, experts
  int reductions_ = 0;                                                        // of this micro-batch, so far
  std::vector<Tensor> tensors_;                                               // in the bucket, where they are reduced one by one
  std::int64_t in_bucket_ = 0;
  int gradients_ = 0;
  int micro_batch_ = 0;
  std::int64_t written_under_backward_ = 0, copied_down_ = 0;                 // elements of gradients: to NVMe; to the host so far, in the last micro-batch
  std::vector<Waiting> waiting_;
};

}  // namespace rehearse::strategies
