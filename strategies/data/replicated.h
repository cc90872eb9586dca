// Parameters whole on every rank: DDP, DeepSpeed ZeRO-1 and ZeRO-2, Megatron's distributed optimizer. When gradients are reduced and
// what comes after is replicated.cpp; how updated parameters reach the others replicated_gathers.cpp; the buffers and partitions that
// DeepSpeed's gradients go through replicated_zero.cpp.
#pragma once

#include <algorithm>
#include <array>

#include "strategies/data/data_parallel.h"

namespace rehearse::strategies {

class Replicated final : public DataParallelWriter {
 public:
  explicit Replicated(Stage& stage);
  void setup() override;
  WeightGradient gradient_mode(bool first) const override;
  /// As autograd hands it on: in the format of the parameters (autocast's casts widen it), which is that of the products where those have copies of their own.
  std::int64_t gradient_element_bytes() const override { return keeps_main_gradients() ? (wide_compute() || profile().autocast ? 4 : 2) : stored_bytes(); }
  std::int64_t main_gradient_element_bytes() const override { return keeps_main_gradients() && !zeroes_narrow() ? main_bytes() : stored_bytes(); }
  void begin_step() override;
  void before_forward(std::size_t unit, int micro_batch) override;
  void before_backward(std::size_t, int) override;
  void before_weight_gradients(std::size_t unit) override;
  void after_backward(std::size_t unit, int, bool first, bool last) override;
  /// Under pipeline stages a model chunk has buckets of its own: what is left goes when its last backward is over.
  void end_chunk(std::size_t, std::size_t) override;
  void end_step() override;

 private:
  bool zero() const { return kind_ == DataParallelKind::zero1 || kind_ == DataParallelKind::zero2; }
  /// Each bucket is made for its reduction, after the last backward, and let go.
  bool flattens_at_once() const { return profile().reduces_over_all && !overlap_reduce_; }
  /// DeepSpeed's stage1.py, until 2021: gradients are exchanged as lists of pieces, after backward.
  bool lists() const { return profile().scatters_gradients && kind_ == DataParallelKind::zero1; }
  /// Gradients are put into a buffer of their own as they are made, and out of it into this rank's partition.
  bool contiguous() const { return zero() && profile().gradient_buffer > 0 && (kind_ == DataParallelKind::zero2 || profile().zero1_gradient_buffer) && !keeps_main_gradients() && !lists(); }
  /// DeepSpeed's other buckets: made for each reduction, after the last backward, of gradients that are there already (runtime/zero/stage_1_and_2.py,
  /// buffered_reduce_fallback; of BF16_Optimizer's fp32 ones the copy in the format that is reduced: engine.py, allreduce_bucket).
  bool buckets_at_reduction() const { return zero() && profile().gradient_buffer > 0 && !contiguous() && !lists() && !reduces_in_backward(); }
  bool shards_states() const { return zero() || kind_ == DataParallelKind::distributed_optimizer; }
  /// Without DDP around the model there are no buckets and nothing overlaps; every rank has the sums of all gradients, whose norm it
  /// takes. Source: nanotron trainer.py, make_ddp, training_step (reduce_scatter=False); optim/clip_grads.py.
  bool reduces_whole() const { return kind_ == DataParallelKind::distributed_optimizer && profile().reduces_whole; }
  /// DeepSpeed sends each reduced bucket down as its owner has it (hand_down); Megatron waits for the end. It is widened on the
  /// GPU before it goes, and updated parameters come back as fp32 (stage_1_and_2.py, async_inplace_copy_grad_to_fp32_buffer_from_gpu,
  /// step: fp32_partition.to(device); in 2020 cpu_adam's param_update_kernel reads fp32 host memory).
  bool copies_under_backward() const { return offloads_optimizer() && zero(); }
  /// Gradients accumulate in one contiguous buffer of their own format (Megatron, nanotron, DeepSpeed bf16).
  bool keeps_main_gradients() const { return !partitions_gradients() && (profile().main_gradients || bits(profile().gradient) / 8 != stored_bytes() || profile().fused_gradient_accumulation); }
  /// ZeRO-2: gradients go into the reduction bucket as they are made; what stays is this rank's partition of their sum.
  bool partitions_gradients() const { return kind_ == DataParallelKind::zero2 && !profile().fused_gradient_accumulation; }
  /// The 16-bit gradients of a micro-batch stay until its backward is over (nanotron, FP32GradientAccumulator.backward).
  bool accumulates_later() const { return profile().accumulates_after_backward && keeps_main_gradients() && !profile().fused_gradient_accumulation; }
  /// They stay until the next backward begins, which lets them go (DeepSpeed's BF16_Optimizer, clear_lp_grads).
  bool holds_narrow() const { return accumulates_later() && profile().widens_before_adding && !zeroes_narrow(); }
  /// They stay for good; each backward zeroes them and adds to them.
  bool zeroes_narrow() const { return accumulates_later() && profile().zeroes_narrow_gradients; }
  bool begins_chunk(std::size_t unit) const { return unit == 0 || stage_.units[unit - 1].chunk != stage_.units[unit].chunk; }
  /// DDP reduces copies of the gradients unless they are views of the buckets.
  bool reduces_copies() const { return kind_ == DataParallelKind::ddp && !keeps_main_gradients() && !flattens_gradients(); }
  bool plain() const { return kind_ == DataParallelKind::ddp || kind_ == DataParallelKind::none; }
  bool flattens_gradients() const { return profile().flattens_gradients && plain() && !keeps_main_gradients() && !offloads_optimizer(); }
  /// Source: NVIDIA/NeMo at v2.0.0, nlp/models/language_modeling/megatron_gpt_model.py, configure_optimizers (make_parameter_bucket; the last
  /// bucket, the first layer's, takes every parameter that is in none); Apex's init_params_bucket makes "one effective bucket" of each.
  bool by_layer() const { return kind_ == DataParallelKind::distributed_optimizer && profile().bucket_by_layer; }
  bool wide_compute() const { return stage_.strategy.training.precision == Precision::fp32 || stage_.strategy.training.precision == Precision::tf32; }
  std::int64_t ddp_bucket() const;
  std::int64_t main_bytes() const { return bits(profile().gradient) / 8; }
  std::int64_t reduce_bytes() const { return bits(reduce_dtype_) / 8; }
  Share my_share() const { return share(shards_states(), keeps_main_gradients() || partitions_gradients() ? main_bytes() : stored_bytes()); }
  bool trains_experts() const { return stage_.trainable_elements(Part::experts) > 0; }
  /// Some other rank holds the same weights: gradients are summed, sharded states gathered.
  bool reduces() const { return stage_.sizes.data > 1 || (stage_.sizes.expert_data > 1 && trains_experts()); }
  bool gathers() const { return stage_.sizes.shard > 1 || (stage_.sizes.expert_data > 1 && trains_experts()); }
  bool gathers_ahead() const { return overlap_gather_ && gathers() && !evaluates(); }
  bool gathers_under_update() const { return stage_.strategy.data_parallel.gather_under_update && gathers_ahead(); }
  /// ZeRO-2 reduces from its hooks whether that overlaps or not (stage_1_and_2.py, create_reduce_and_remove_grad_hooks); others without overlap
  /// when the last backward is over.
  bool reduces_in_backward() const { return (overlap_reduce_ || kind_ == DataParallelKind::zero2) && !reduces_whole(); }
  std::int64_t& pending(Part part) { return pending_[part == Part::experts]; }

  // Reduction and update (replicated.cpp)
  void clip_whole();
  std::int64_t own_weights() const;
  void zero_narrow(const Unit& unit);
  void accumulate_chunk(std::size_t first);
  void dummies();
  void check_by_parameter();
  CollectiveKind reduction() const;
  void reduce(Part part, std::int64_t bytes);
  bool norm_in_doubles() const;
  bool flattens_bucket(Part part, std::int64_t from, std::int64_t bytes) const;
  void hand_down(plan::BlockWriter& w, Part part, std::int64_t elements, bool first);
  void behind_buckets(plan::BlockWriter& w);
  static void compute_waits_for_buckets(plan::BlockWriter& w);
  void reduce_pending();
  void reduce_flat();

  // Updated parameters (replicated_gathers.cpp)
  std::uint32_t gather_event(std::size_t unit) const { return static_cast<std::uint32_t>(stage_.units[unit].tape->weights.size()); }
  std::int64_t expert_bytes(std::size_t unit) const { return stage_.units[unit].tape->travel_bytes(stored_bytes(), Part::experts); }
  std::int64_t sent_ahead(std::size_t unit) const { return std::min(expert_bytes(unit), kExpertModules * (bucket_ / reduce_bytes()) * stored_bytes()); }
  bool chains() const;
  void gather_ahead();
  void update_and_gather(const Share& all);
  void wait_for_parameters(std::size_t unit);
  void cast_weights(const Unit& u);
  void gather(plan::BlockWriter& w, Part part, std::int64_t bytes, int sync);
  void gather_through_copies();
  void gather_by_broadcast();
  void gather_all();

  // DeepSpeed's gradients (replicated_zero.cpp)
  bool widens_gradients() const;
  void widen_gradients();
  void wide_gradients(bool made);
  void view_gradients();
  void make_buckets(bool two);
  void release_buckets();
  std::int64_t bucket_source(Part part, std::int64_t bytes) const;
  void copy_bucket(plan::BlockWriter& w, const char* name, std::int64_t elements, std::int64_t from, std::int64_t to);
  void fill_bucket(plan::BlockWriter& w, Part part, std::int64_t bytes);
  void empty_bucket(plan::BlockWriter& w, Part part, std::int64_t bytes);
  void make_partition(bool first);
  bool widens_partition() const;
  void update_widened();
  void scatter_lists();
  void into_bucket(const Unit& u, bool first);

  static constexpr std::uint32_t kWideGradients = Stage::kPersistentSlots - 23;
  // Slots of DeepSpeed's buffers
  static constexpr std::uint32_t kBucket = Stage::kPersistentSlots - 25, kOtherBucket = Stage::kPersistentSlots - 26, kPartition = Stage::kPersistentSlots - 27,
                                 kNewPartition = Stage::kPersistentSlots - 28, kFlat = Stage::kPersistentSlots - 29;
  /// Experts of which a layer has more than its modules' worth of buckets. A bucket is asked for when the one before has been waited for:
  /// one travels while each of a layer's two grouped modules computes, the others while compute waits.
  /// Source: megatron/core/distributed/param_and_grad_buffer.py, finish_param_sync (next_param_gather_bucket_group).
  static constexpr int kExpertModules = 2;

  DataParallelKind kind_;
  bool overlap_reduce_ = true, overlap_gather_ = false;
  bool chained_ = false;        // experts' parameters are gathered bucket after bucket, as they are waited for
  DType reduce_dtype_ = DType::fp32;
  std::int64_t bucket_ = 0;
  std::array<std::int64_t, 2> pending_{};   // bytes to reduce: dense weights, experts
  std::array<std::int64_t, 2> reduced_{};   // of this micro-batch's, from the last layer on
  bool first_ = true, last_ = true;
  bool buckets_made_ = false, narrow_held_ = false, two_buckets_ = false, partition_made_ = false, new_partition_ = false;
  std::uint32_t gather_frame_ = plan::kNoFrame;
  std::array<std::uint32_t, 2> scatter_frames_{plan::kNoFrame, plan::kNoFrame};
};

}  // namespace rehearse::strategies
