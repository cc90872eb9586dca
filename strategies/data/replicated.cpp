// Parameters whole on every rank: DDP, DeepSpeed ZeRO-1 and ZeRO-2, Megatron's distributed optimizer.
#include <algorithm>
#include <utility>

#include "strategies/data/families.h"

namespace rehearse::strategies {

using model::KernelKind;
using plan::Category;
using plan::GroupAxis;
using plan::Phase;
using plan::Stream;

namespace {

class Replicated final : public DataParallelWriter {
 public:
  explicit Replicated(Stage& stage) : DataParallelWriter(stage), kind_(stage.strategy.data_parallel.kind) {
    const auto& dp = stage.strategy.data_parallel;
    overlap_reduce_ = dp.overlap_gradient_reduce.value_or(profile().overlap_gradient_reduce);
    overlap_gather_ = dp.overlap_parameter_gather.value_or(profile().overlap_parameter_gather) && shards_states();
    reduce_dtype_ = dp.reduce_dtype.value_or(profile().reduce);
    bucket_ = dp.bucket ? dp.bucket->value : std::max(profile().bucket_elements, profile().bucket_elements_per_rank * stage_.sizes.data) * reduce_bytes();
    if (bucket_ <= 0) bucket_ = INT64_MAX;
    if (lists()) overlap_reduce_ = false;
  }

  void setup() override {
    persistent("parameters", stage_.parameter_bytes(stored_bytes()) - stage_.bytes_on_host, Category::parameter);
    if (keeps_main_gradients()) persistent("gradients", stage_.trainable_bytes(main_bytes()), Category::gradient);
    const Share stays = part_of(my_share(), false);
    if (partitions_gradients() && !contiguous()) persistent("gradient partition", stays.gradients, Category::gradient);
    keep_states(stays);
    stage_.rank_class.unified = paged_bytes();
    keep_on_host(my_share());
    if (profile().ddp_bucket_copies && stage_.sizes.data > 1 && !reduces_whole()) persistent("gradient bucket views", stage_.trainable_bytes(2), Category::gradient);
    const std::int64_t reduced = stage_.trainable_bytes(reduce_bytes());
    if (reduces_copies() && reduces()) persistent("gradient buckets", reduced, Category::communication);
    if (zero() && !contiguous() && !lists() && reduces()) persistent("reduce bucket", std::min(bucket_, reduced) * (overlap_reduce_ ? 2 : 1), Category::communication);
    if (profile().dummy_weight_gradients) dummies();
  }

  WeightGradient gradient_mode(bool first) const override {
    if (accumulates_later()) return WeightGradient::first;
    if (keeps_main_gradients()) return profile().fused_gradient_accumulation ? WeightGradient::fused_main : WeightGradient::added_main;
    return first || partitions_gradients() ? WeightGradient::first : WeightGradient::accumulate;
  }
  /// As the weight-gradient kernel writes it: 16 bit where autocast or the parameters are.
  std::int64_t gradient_element_bytes() const override { return keeps_main_gradients() ? (wide_compute() ? 4 : 2) : stored_bytes(); }
  std::int64_t main_gradient_element_bytes() const override { return keeps_main_gradients() ? main_bytes() : stored_bytes(); }

  void begin_step() override {
    pending_ = {};
    if (evaluates()) return;
    if (keeps_main_gradients()) {
      const std::int64_t bytes = stage_.trainable_bytes(main_bytes());
      stage_.call("zero gradients", Phase::optimizer, nullptr, [&](plan::BlockWriter& w) {
        w.kernel(builder().kernel({.kind = KernelKind::memset, .dtype = DType::fp32, .bytes_written = bytes, .name = "zero gradients"}), host());
      });
    }
    if (gathers_ahead()) gather_ahead();
  }

  void before_forward(std::size_t unit, int micro_batch) override {
    release_buckets();
    if (!gathers_ahead() || micro_batch != 0) return;
    const std::uint32_t event = gather_event(unit);
    stage_.call("wait parameters " + std::to_string(event), Phase::forward, &stage_.units[unit], [&](plan::BlockWriter& w) { w.wait(Stream::compute, event, plan::Frame::unit); });
    const std::int64_t left = expert_bytes(unit) - sent_ahead(unit), next = unit + 1 < stage_.units.size() ? sent_ahead(unit + 1) : 0;
    if (!chained_ || (left <= 0 && next <= 0)) return;
    stage_.call("gather experts " + std::to_string(left) + " then " + std::to_string(next), Phase::parameter_gather, &stage_.units[unit], [&](plan::BlockWriter& w) {
      gather(w, Part::experts, left, plan::kComputeWaits);
      gather(w, Part::experts, next, 0);
    });
  }

  void before_backward(std::size_t, int) override {
    if (stage_.sizes.pipeline == 1) make_buckets(overlap_reduce_);
  }

  void after_backward(std::size_t unit, int, bool first, bool last) override {
    if (stage_.strategy.memory.optimizer_in_backward) return update_in_backward(stage_.units[unit], stored_bytes());
    if (partitions_gradients()) into_bucket(stage_.units[unit], first);
    if (accumulates_later() && begins_chunk(unit)) accumulate_chunk(unit);
    first_ = first, last_ = last;
    if (!reduces()) {
      const std::int64_t bytes = stage_.units[unit].tape->trainable_bytes(stored_bytes());
      if (copies_under_backward() && (last || kind_ == DataParallelKind::zero2) && bytes > 0)
        stage_.call("gradients to host " + std::to_string(bytes) + (first ? " first" : "") + (last ? " last" : ""), Phase::gradient_reduction, nullptr,
                    [&](plan::BlockWriter& w) { copy_gradients(w, bytes, last ? stage_.units[unit].tape->trainable_bytes(4) : bytes, Stream::compute, first || kind_ != DataParallelKind::zero2); });
      return;
    }
    // ZeRO-2 partitions gradients, so it must reduce every micro-batch; the others only the last.
    const bool reduce_now = last || kind_ == DataParallelKind::zero2;
    if (!reduce_now) return;
    for (const Part part : kParts) pending(part) += stage_.units[unit].tape->trainable_bytes(reduce_bytes(), part);
    if (!overlap_reduce_ || reduces_whole()) return;
    // Megatron: only the first pipeline rank's first chunk is bucketed (facts: schedules.md section 5).
    const bool first_stage = stage_.sizes.stage_before < 0 && stage_.units[unit].chunk == 0;
    if (kind_ == DataParallelKind::distributed_optimizer && stage_.sizes.pipeline > 1 && !first_stage) return;
    for (const Part part : kParts)
      while (pending(part) >= bucket_) {
        reduce(part, bucket_);
        pending(part) -= bucket_;
      }
  }

  /// Under pipeline stages a model chunk has buckets of its own: what is left goes when its last backward is over.
  void end_chunk(std::size_t, std::size_t) override {
    const bool own_buckets = kind_ == DataParallelKind::distributed_optimizer || kind_ == DataParallelKind::ddp;
    if (reduces() && stage_.sizes.pipeline > 1 && overlap_reduce_ && own_buckets && !reduces_whole()) reduce_pending();
  }

  void end_step() override {
    if (stage_.strategy.memory.optimizer_in_backward) return free_tied_gradients();
    if (!evaluates() && stage_.sizes.pipeline > 1) make_buckets(false);
    if (reduces()) {
      lists() ? scatter_lists() : reduce_pending();
      stage_.call("wait gradients", Phase::gradient_reduction, nullptr, [&](plan::BlockWriter& w) {
        for (Stream s : {Stream::data_reduce, Stream::data_replicate}) {
          w.record(s, Stage::kPersistentSlots - 2);
          w.wait(Stream::compute, Stage::kPersistentSlots - 2);
        }
      });
    }
    release_buckets();
    sum_copies(my_share());
    check_by_parameter();
    if (widens_gradients()) widen_gradients();
    if (reduces_whole()) clip_whole();
    else clip(my_share(), shards_states());
    if (offloads_optimizer()) {
      const Share host_part = part_of(my_share(), true);
      if (!copies_under_backward())
        stage_.call("gradients to host at end", Phase::gradient_reduction, nullptr, [&](plan::BlockWriter& w) { copy_gradients(w, my_share().gradients, my_share().gradients, Stream::compute, true); });
      update(part_of(my_share(), false));
      update_on_host({host_part}, false, copies_under_backward() ? 4 : 0);
    } else if (stage_.strategy.memory.paged_optimizer) {
      update_paged(keeps_main_gradients() ? main_bytes() : stored_bytes());
    } else if (widens_partition()) {
      update_widened();
    } else {
      update(my_share());
    }
    if (std::exchange(partition_made_, false)) stage_.call("free gradient partition", Phase::optimizer, nullptr, [](plan::BlockWriter& w) { w.free(kPartition); });
    if (widens_partition()) {
      // what there was has gone into the fp32 copy
    } else if (widens_gradients())
      stage_.call("free wide gradients", Phase::optimizer, nullptr, [](plan::BlockWriter& w) { w.free(kWideGradients); });
    else if (!keeps_main_gradients() && !partitions_gradients()) free_gradients();
    if (shards_states() && gathers() && !overlap_gather_) gather_all();
  }

 private:
  bool zero() const { return kind_ == DataParallelKind::zero1 || kind_ == DataParallelKind::zero2; }
  /// DeepSpeed's stage1.py, until 2021: gradients are exchanged as lists of pieces, after backward.
  bool lists() const { return profile().scatters_gradients && kind_ == DataParallelKind::zero1; }
  /// Gradients are put into a buffer of their own as they are made, and out of it into this rank's partition.
  bool contiguous() const { return zero() && profile().gradient_buffer > 0 && !keeps_main_gradients() && !lists(); }
  bool shards_states() const { return kind_ == DataParallelKind::zero1 || kind_ == DataParallelKind::zero2 || kind_ == DataParallelKind::distributed_optimizer; }
  /// Without DDP around the model there are no buckets and nothing overlaps; every rank has the sums of all gradients, whose norm it
  /// takes. Source: nanotron trainer.py, make_ddp, training_step (reduce_scatter=False); optim/clip_grads.py.
  bool reduces_whole() const { return kind_ == DataParallelKind::distributed_optimizer && profile().reduces_whole; }
  void clip_whole() {
    Share all = my_share();
    all.gradients = stage_.trainable_bytes(main_bytes());
    clip(all, false);
    // A norm and a scaling for each weight, of which clip() has one of each.
    stage_.call("clip weight by weight", Phase::optimizer, nullptr, [&](plan::BlockWriter& w) { w.host(host() * (2 * own_weights())); });
  }
  std::int64_t own_weights() const {
    std::int64_t weights = 0;
    for (const Unit& u : stage_.units)
      for (const Weight& weight : u.tape->weights) weights += weight.trainable && !weight.parameter_elsewhere;
    return weights;
  }
  /// DeepSpeed sends each reduced bucket's partition down while backward goes on; Megatron waits for the end. It is widened on the
  /// GPU before it goes, and updated parameters come back as fp32 (stage_1_and_2.py, async_inplace_copy_grad_to_fp32_buffer_from_gpu,
  /// step: fp32_partition.to(device); in 2020 cpu_adam's param_update_kernel reads fp32 host memory).
  bool copies_under_backward() const { return offloads_optimizer() && (kind_ == DataParallelKind::zero1 || kind_ == DataParallelKind::zero2); }
  /// Gradients accumulate in one contiguous buffer of their own format (Megatron, nanotron, DeepSpeed bf16).
  bool keeps_main_gradients() const { return !partitions_gradients() && (bits(profile().gradient) / 8 != stored_bytes() || profile().fused_gradient_accumulation); }
  /// ZeRO-2: gradients go into the reduction bucket as they are made; what stays is this rank's partition of their sum.
  bool partitions_gradients() const { return kind_ == DataParallelKind::zero2 && !profile().fused_gradient_accumulation; }
  /// The 16-bit gradients of a micro-batch stay until its backward is over (nanotron, FP32GradientAccumulator.backward).
  bool accumulates_later() const { return profile().accumulates_after_backward && keeps_main_gradients() && !profile().fused_gradient_accumulation; }
  bool begins_chunk(std::size_t unit) const { return unit == 0 || stage_.units[unit - 1].chunk != stage_.units[unit].chunk; }
  void accumulate_chunk(std::size_t first) {
    for (std::size_t u = first; u < stage_.units.size() && stage_.units[u].chunk == stage_.units[first].chunk; ++u) {
      const Unit& unit = stage_.units[u];
      stage_.call("accumulate gradients " + std::to_string(unit.tape->trainable_elements()) + pattern_of(unit), Phase::backward, &unit, [&](plan::BlockWriter& w) {
        for (const Weight& weight : unit.tape->weights) {
          if (!weight.trainable || weight.gradient_elsewhere) continue;
          const std::int64_t main = weight.elements * main_bytes();
          w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = weight.elements * gradient_element_bytes() + main, .bytes_written = main, .name = "gradient accumulate"}), host());
        }
        free_gradients_of(unit, w);
      });
    }
  }
  /// DDP reduces copies of the gradients unless they are views of the buckets.
  bool reduces_copies() const { return kind_ == DataParallelKind::ddp && !keeps_main_gradients(); }
  bool wide_compute() const { return stage_.strategy.training.precision == Precision::fp32 || stage_.strategy.training.precision == Precision::tf32; }
  std::int64_t main_bytes() const { return bits(profile().gradient) / 8; }
  std::int64_t reduce_bytes() const { return bits(reduce_dtype_) / 8; }
  Share my_share() const { return share(shards_states(), keeps_main_gradients() || partitions_gradients() ? main_bytes() : stored_bytes()); }

  /// Transformer Engine keeps one 16-bit dummy gradient per distinct weight shape (facts: memory-model.md section 0).
  void dummies() {
    std::vector<std::int64_t> shapes;
    for (const Unit& u : stage_.units)
      for (const Weight& w : u.tape->weights)
        if (w.matrix && w.trainable && std::find(shapes.begin(), shapes.end(), w.elements) == shapes.end()) shapes.push_back(w.elements);
    for (std::int64_t elements : shapes) persistent("dummy weight gradient", elements * 2, Category::temporary);
  }

  /// Without ZeRO, DeepSpeed's fp16 step begins with fp32 copies of all gradients, then joins them into one tensor.
  /// Source: deepspeed runtime/fp16/fused_optimizer.py, step: p.grad.to(data_type), _flatten_dense_tensors.
  bool widens_gradients() const {
    const bool plain = kind_ == DataParallelKind::ddp || kind_ == DataParallelKind::none;
    return profile().widens_gradients && plain && stage_.strategy.training.precision == Precision::fp16 && !keeps_main_gradients() && !offloads_optimizer();
  }
  static constexpr std::uint32_t kWideGradients = Stage::kPersistentSlots - 23;
  void widen_gradients() {
    const std::int64_t narrow = stage_.trainable_bytes(stored_bytes()), wide = stage_.trainable_bytes(4);
    stage_.call("widen gradients " + std::to_string(wide), Phase::optimizer, nullptr, [&](plan::BlockWriter& w) {
      constexpr std::uint32_t copies = Stage::kPersistentSlots - 24;
      w.alloc(copies, wide, Category::gradient);
      w.kernel(builder().kernel({.kind = KernelKind::elementwise, .dtype = DType::fp32, .bytes_read = narrow, .bytes_written = wide, .name = "widen gradients"}), host());
      w.alloc(kWideGradients, wide, Category::gradient);
      w.kernel(builder().kernel({.kind = KernelKind::elementwise, .dtype = DType::fp32, .bytes_read = wide, .bytes_written = wide, .name = "join gradients"}), host());
      w.free(copies);
    });
    free_gradients();
  }

  /// Overflow, then the norm: of each parameter an fp32 copy, a sum and a wait of the host. ZeRO-1 looks at all of them, ZeRO-2 at its own.
  /// Source: DeepSpeed of 2020-21, runtime/utils.py, CheckOverflow, get_grad_norm; zero/stage2.py, get_grad_norm_direct.
  void check_by_parameter() {
    const bool deepspeed = kind_ == DataParallelKind::zero1 || kind_ == DataParallelKind::zero2;
    if (!profile().checks_by_parameter || !deepspeed || offloads_optimizer()) return;
    std::int64_t weights = 0, elements = 0;
    for (const Unit& u : stage_.units)
      for (const Weight& w : u.tape->weights)
        if (w.trainable && !w.gradient_elsewhere) ++weights, elements += w.elements;
    if (weights == 0) return;
    const std::int64_t each = elements / weights, mine = kind_ == DataParallelKind::zero2 ? (weights + stage_.sizes.shard - 1) / stage_.sizes.shard : weights;
    for (std::int64_t i = 0; i < 2 * mine; ++i)
      stage_.call("check parameter " + std::to_string(each), Phase::optimizer, nullptr, [&](plan::BlockWriter& w) {
        constexpr std::uint32_t wide = Stage::kPersistentSlots - 20;
        w.alloc(wide, each * 4, Category::temporary);
        w.kernel(builder().kernel({.kind = KernelKind::elementwise, .dtype = DType::fp32, .bytes_read = each * stored_bytes(), .bytes_written = each * 4, .name = "widen gradient"}), host());
        w.kernel(builder().kernel({.kind = KernelKind::reduction, .dtype = DType::fp32, .bytes_read = each * 4, .bytes_written = 4, .name = "check gradient"}), host());
        w.free(wide);
        w.host_sync();
      });
  }

  // Slots of DeepSpeed's buffers
  static constexpr std::uint32_t kBucket = Stage::kPersistentSlots - 25, kOtherBucket = Stage::kPersistentSlots - 26, kPartition = Stage::kPersistentSlots - 27,
                                 kNewPartition = Stage::kPersistentSlots - 28, kFlat = Stage::kPersistentSlots - 29;

  /// The buffers that gradients are put together in: made when a backward begins, after the loss (setup_buckets; under pipeline
  /// stages reduce_gradients makes one), as large as the reduction bucket whatever the model has.
  /// Source: DeepSpeed runtime/zero/stage_1_and_2.py; stage2.py of 2020: 4.5 times as large.
  void make_buckets(bool two) {
    if (!contiguous() || buckets_made_) return;
    buckets_made_ = true;
    const std::int64_t bucket = bucket_ == INT64_MAX ? stage_.trainable_bytes(stored_bytes()) : bucket_ / reduce_bytes() * stored_bytes();
    const auto bytes = static_cast<std::int64_t>(static_cast<double>(bucket) * profile().gradient_buffer);
    stage_.call(two ? "make two gradient buffers" : "make gradient buffer", Phase::backward, nullptr, [&](plan::BlockWriter& w) {
      w.alloc(kBucket, bytes, Category::communication);
      if (two) w.alloc(kOtherBucket, bytes, Category::communication);
    });
    two_buckets_ = two;
  }
  /// They go when the backward is over; a later micro-batch's partition is added to the first one's
  /// (stage_1_and_2.py, independent_gradient_partition_epilogue).
  void release_buckets() {
    if (!buckets_made_) return;
    buckets_made_ = false;
    const std::int64_t bytes = new_partition_ ? part_of(my_share(), false).gradients : 0;
    stage_.call(std::string("release gradient buffers") + (two_buckets_ ? " two" : "") + (new_partition_ ? " add" : ""), Phase::gradient_reduction, nullptr, [&](plan::BlockWriter& w) {
      if (two_buckets_) w.free(kOtherBucket);
      w.free(kBucket);
      if (!new_partition_) return;
      w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = 2 * bytes, .bytes_written = bytes, .name = "add partition"}), host());
      w.free(kNewPartition);
    });
    new_partition_ = false;
  }
  /// This rank's part of the 16-bit gradients, one tensor: there from a micro-batch's first gradient on, until the update.
  void make_partition(bool first) {
    const std::int64_t bytes = part_of(my_share(), false).gradients;
    if (!contiguous() || bytes <= 0 || (first ? partition_made_ : new_partition_)) return;
    (first ? partition_made_ : new_partition_) = true;
    stage_.call(first ? "make gradient partition" : "make new gradient partition", Phase::gradient_reduction, nullptr,
                [&](plan::BlockWriter& w) { w.alloc(first ? kPartition : kNewPartition, bytes, Category::gradient); });
  }

  /// ZeRO-1 and 2: this rank's 16-bit gradients are joined, copied to fp32 and let go; the update reads the copy.
  /// Source: deepspeed runtime/zero/stage_1_and_2.py, step: flatten(averaged_gradients).to(fp32); the same in stage1.py and stage2.py.
  bool widens_partition() const {
    return profile().widens_gradients && zero() && !keeps_main_gradients() && stored_bytes() == 2 && profile().master_parameters && !offloads_optimizer() && !stage_.strategy.memory.paged_optimizer && my_share().gradients > 0;
  }
  void update_widened() {
    Share mine = my_share();
    const std::int64_t narrow = mine.gradients, wide = mine.elements * 4;
    if (!partition_made_ && !lists()) make_partition(true);   // ZeRO-1: copied as buckets are reduced (copy_grads_in_partition)
    if (!partitions_gradients()) free_gradients();
    const bool made = std::exchange(partition_made_, false);
    stage_.call(std::string("widen partition ") + std::to_string(wide) + (made ? " made" : ""), Phase::optimizer, nullptr, [&](plan::BlockWriter& w) {
      w.alloc(kFlat, narrow, Category::gradient);
      w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = narrow, .bytes_written = narrow, .name = "join gradients"}), host());
      w.alloc(kWideGradients, wide, Category::gradient);
      w.kernel(builder().kernel({.kind = KernelKind::elementwise, .dtype = DType::fp32, .bytes_read = narrow, .bytes_written = wide, .name = "widen gradients"}), host());
      w.free(kFlat);
      if (made) w.free(kPartition);
    });
    mine.gradients = wide;
    update(mine);
    stage_.call("free wide gradients", Phase::optimizer, nullptr, [](plan::BlockWriter& w) { w.free(kWideGradients); });
  }

  bool trains_experts() const { return stage_.trainable_elements(Part::experts) > 0; }
  /// Some other rank holds the same weights: gradients are summed, sharded states gathered.
  bool reduces() const { return stage_.sizes.data > 1 || (stage_.sizes.expert_data > 1 && trains_experts()); }
  bool gathers() const { return stage_.sizes.shard > 1 || (stage_.sizes.expert_data > 1 && trains_experts()); }
  bool gathers_ahead() const { return overlap_gather_ && gathers() && !evaluates(); }
  std::int64_t& pending(Part part) { return pending_[part == Part::experts]; }

  void reduce(Part part, std::int64_t bytes) {
    if (bytes <= 0) return;
    const bool scatter = kind_ == DataParallelKind::distributed_optimizer && !reduces_whole(), experts = part == Part::experts;
    const bool first = first_ || kind_ != DataParallelKind::zero2;
    stage_.call((experts ? "reduce expert gradients " : "reduce gradients ") + std::to_string(bytes) + (copies_under_backward() && first ? " first" : "") + (copies_under_backward() && last_ ? " last" : ""), Phase::gradient_reduction, nullptr, [&](plan::BlockWriter& w) {
      if (reduces_copies()) w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = bytes, .bytes_written = bytes, .name = "copy to bucket"}), host());
      const bool at_once = profile().reduces_over_all && !scatter && !experts;  // over shards and replicas
      auto copy_on_stream = [&](const char* name) {
        w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = bytes, .bytes_written = bytes, .name = name}), host(), Stream::data_reduce);
      };
      if (at_once) {
        w.record(Stream::compute, Stage::kPersistentSlots - 6);
        w.wait(Stream::data_reduce, Stage::kPersistentSlots - 6);
        copy_on_stream("flatten bucket");
      }
      if (at_once ? stage_.sizes.data > 1 : stage_.sizes.sharing(part) > 1)
        w.collective(builder().collective({scatter ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce, at_once ? GroupAxis::data_context : axis_of(part), Bytes{bytes}, "gradient reduction"}),
                     Stream::data_reduce, at_once ? 0 : plan::kAfterCompute, profile().collective_host);
      if (at_once) copy_on_stream("unflatten bucket");
      if (stage_.sizes.replicate > 1 && !experts && !at_once) {
        w.record(Stream::data_reduce, Stage::kPersistentSlots - 3);
        w.wait(Stream::data_replicate, Stage::kPersistentSlots - 3);
        w.collective(builder().collective({CollectiveKind::all_reduce, GroupAxis::data_replicate, Bytes{scatter ? bytes / stage_.sizes.shard : bytes}, "replica reduction"}),
                     Stream::data_replicate, plan::kAfterCompute, profile().collective_host);
      }
      const std::int64_t mine = bytes / reduce_bytes() / stage_.sizes.sharing(part);
      if (copies_under_backward())
        copy_gradients(w, mine * stored_bytes(), mine * (last_ ? 4 : stored_bytes()), stage_.sizes.replicate > 1 && !experts ? Stream::data_replicate : Stream::data_reduce, first);
    });
  }

  /// What is left goes in buckets; a chunk of Megatron's that has none goes as one.
  void reduce_pending() {
    const bool whole = reduces_whole() || (kind_ == DataParallelKind::distributed_optimizer && stage_.sizes.pipeline > 1 && overlap_reduce_);
    const std::int64_t most = whole ? INT64_MAX : bucket_;
    for (const Part part : kParts)
      for (std::int64_t& left = pending(part); left > 0; left -= std::min(left, most)) reduce(part, std::min(left, most));
  }

  /// All gradients are copied into the pieces that ranks own, interval by interval of the bucket's size; each interval is
  /// reduce-scattered from a copy that lies side by side (ProcessGroupNCCL, lists) and averaged. Until 2020-11 the intervals are then
  /// joined, then all of them, and a rank's own gradients copied back. Everything stays until the end.
  /// Source: DeepSpeed runtime/zero/stage1.py, reduce_scatter_gradients; 08c96a1bc (2020-11-19).
  void scatter_lists() {
    for (const Part part : kParts) {
      const std::int64_t bytes = std::exchange(pending(part), 0);
      if (bytes <= 0) continue;
      const std::int64_t intervals = bucket_ == INT64_MAX ? 1 : (bytes + bucket_ - 1) / bucket_, each = bytes / intervals;
      const bool experts = part == Part::experts;
      const auto sharing = stage_.sizes.sharing(part);
      const std::uint32_t block = stage_.block((experts ? "scatter expert gradients " : "scatter gradients ") + std::to_string(bytes), [&](plan::BlockWriter& w) {
        const auto copy = [&](std::int64_t read, std::int64_t written, const char* name) {
          w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = read, .bytes_written = written, .name = name}), host());
        };
        std::vector<std::uint32_t> held;
        const auto hold = [&](std::int64_t size, const char* name) {
          held.push_back(w.new_slot(name));
          w.alloc(held.back(), size, Category::communication);
        };
        for (std::int64_t i = 0; i < intervals; ++i) hold(each, "gradient pieces");
        copy(bytes, bytes, "join pieces");
        for (std::int64_t i = 0; i < intervals; ++i) {
          const std::uint32_t beside = w.new_slot("pieces side by side");
          w.alloc(beside, each, Category::communication);
          copy(each, each, "pieces side by side");
          if (sharing > 1)
            w.collective(builder().collective({CollectiveKind::reduce_scatter, axis_of(part), Bytes{each}, "gradient reduction"}), Stream::data_reduce, plan::kAfterCompute | plan::kComputeWaits, profile().collective_host);
          if (stage_.sizes.replicate > 1 && !experts)
            w.collective(builder().collective({CollectiveKind::all_reduce, GroupAxis::data_replicate, Bytes{each / stage_.sizes.shard}, "replica reduction"}), Stream::data_replicate, plan::kAfterCompute | plan::kComputeWaits, profile().collective_host);
          w.free(beside);
          const std::int64_t averaged = profile().joins_scattered ? each : each / sharing;
          copy(averaged, averaged, "average pieces");
        }
        if (profile().joins_scattered) {
          for (std::int64_t i = 0; i < intervals; ++i) hold(each, "gradients of an interval");
          copy(bytes, bytes, "join intervals");
          hold(bytes, "all gradients");
          copy(bytes, bytes, "join all");
          copy(bytes / sharing, bytes / sharing, "own gradients back");
        }
        for (const std::uint32_t slot : held) w.free(slot);
      });
      std::uint32_t& frame = scatter_frames_[experts];
      if (frame == plan::kNoFrame) frame = stage_.frames.acquire(static_cast<std::uint32_t>(3 * intervals + 1));
      plan::Call call{.block = block, .phase = Phase::gradient_reduction};
      call.frames[static_cast<std::size_t>(plan::Frame::own)] = frame;
      stage_.append(call);
    }
  }

  std::uint32_t gather_event(std::size_t unit) const { return static_cast<std::uint32_t>(stage_.units[unit].tape->weights.size()); }

  /// Experts of which a layer has more than its modules' worth of buckets. A bucket is asked for when the one before has been waited for:
  /// one travels while each of a layer's two grouped modules computes, the others while compute waits.
  /// Source: megatron/core/distributed/param_and_grad_buffer.py, finish_param_sync (next_param_gather_bucket_group).
  static constexpr int kExpertModules = 2;
  std::int64_t expert_bytes(std::size_t unit) const { return stage_.units[unit].tape->trainable_bytes(stored_bytes(), Part::experts); }
  std::int64_t sent_ahead(std::size_t unit) const { return std::min(expert_bytes(unit), kExpertModules * (bucket_ / reduce_bytes()) * stored_bytes()); }
  bool chains() const {
    if (kind_ != DataParallelKind::distributed_optimizer || bucket_ == INT64_MAX || stage_.sizes.sharing(Part::experts) <= 1) return false;
    for (std::size_t u = 0; u < stage_.units.size(); ++u)
      if (expert_bytes(u) > sent_ahead(u)) return true;
    return false;
  }

  /// Updated parameters come back while the forward pass of the next step runs, unit by unit.
  void gather_ahead() {
    chained_ = chains();
    for (std::size_t u = 0; u < stage_.units.size(); ++u) {
      const Tape& tape = *stage_.units[u].tape;
      const std::int64_t dense = tape.trainable_bytes(stored_bytes(), Part::dense), experts = !chained_ ? expert_bytes(u) : u == 0 ? sent_ahead(u) : 0;
      const std::uint32_t event = gather_event(u);
      stage_.call("gather parameters " + std::to_string(dense) + " " + std::to_string(experts) + " " + std::to_string(event), Phase::parameter_gather, &stage_.units[u], [&](plan::BlockWriter& w) {
        for (const Part part : kParts) gather(w, part, part == Part::dense ? dense : experts, 0);
        w.record(Stream::data_gather, event, plan::Frame::unit);
      });
    }
  }

  void gather(plan::BlockWriter& w, Part part, std::int64_t bytes, int sync) {
    if (bytes <= 0 || stage_.sizes.sharing(part) <= 1) return;
    w.collective(builder().collective({CollectiveKind::all_gather, axis_of(part), Bytes{bytes}, "parameter gather"}), Stream::data_gather, plan::kAfterCompute | sync, profile().collective_host);
  }

  /// Every rank's share of the weights is joined into a buffer of its own, which the update of that rank then overwrites, beside a copy
  /// of what this rank sends; NCCL gathers into one tensor more and copies from there. Then each piece of each weight is a copy.
  /// Source: nanotron distributed.py, all_gather_coalesced; PyTorch ProcessGroupNCCL.cpp, allgather (newLikeFlat, copy_).
  void gather_through_copies() {
    const std::int64_t bytes = stage_.trainable_bytes(stored_bytes());
    const auto ranks = static_cast<std::uint32_t>(stage_.sizes.shard);
    if (bytes <= 0 || ranks <= 1) return;
    if (gather_frame_ == plan::kNoFrame) gather_frame_ = stage_.frames.acquire(ranks + 3);   // shares, the whole, an event
    const std::int64_t weights = own_weights();
    const std::uint32_t block = stage_.block("gather parameters through copies", [&](plan::BlockWriter& w) {
      const auto copy = [&](const char* name, std::int64_t of, Duration host_time, Stream stream) {
        w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = of, .bytes_written = of, .name = name}), host_time, stream);
      };
      for (std::uint32_t r = 0; r <= ranks; ++r) {
        w.alloc(w.new_slot("updated share"), bytes / ranks, Category::communication);
        copy("join share", bytes / ranks, host(), Stream::compute);
      }
      const std::uint32_t flat = w.new_slot("all updated shares");
      w.alloc(flat, bytes, Category::communication);
      gather(w, Part::all, bytes, 0);
      for (std::uint32_t r = 0; r < ranks; ++r) copy("share from all", bytes / ranks, host(), Stream::data_gather);
      const std::uint32_t arrived = w.new_slot();
      w.record(Stream::data_gather, arrived);
      w.wait(Stream::compute, arrived);
      w.free(flat);
      copy("weights from shares", bytes, host() * (weights * ranks), Stream::compute);
      for (std::uint32_t r = 0; r <= ranks; ++r) w.free(r);
    });
    plan::Call call{.block = block, .phase = Phase::parameter_gather};
    call.frames[static_cast<std::size_t>(plan::Frame::own)] = gather_frame_;
    stage_.append(call);
  }

  /// Each rank that has any tensors broadcasts them. What a rank updates is taken as the average of these shares.
  /// Source: InternLM/InternEvo internlm/solver/optimizer/hybrid_zero_optim.py, broadcast_params.
  void gather_by_broadcast() {
    stage_.call("broadcast parameters", Phase::parameter_gather, nullptr, [&](plan::BlockWriter& w) {
      for (const std::int64_t bytes : shares_of_whole_tensors())
        if (bytes > 0)
          w.collective(builder().collective({CollectiveKind::broadcast, axis_of(Part::dense), Bytes{bytes}, "parameter broadcast"}), Stream::data_gather, plan::kAfterCompute | plan::kComputeWaits,
                       profile().collective_host);
    });
  }

  void gather_all() {
    if (profile().gathers_by_broadcast && !trains_experts()) return gather_by_broadcast();
    if (profile().gathers_through_copies && !trains_experts()) return gather_through_copies();
    for (const Part part : kParts) {
      std::int64_t left = stage_.trainable_bytes(stored_bytes(), part);
      const std::int64_t chunk = std::max<std::int64_t>(1, bucket_ == INT64_MAX ? left : bucket_ / reduce_bytes() * stored_bytes());
      for (; left > 0; left -= std::min(left, chunk)) {
        const std::int64_t bytes = std::min(left, chunk);
        stage_.call((part == Part::experts ? "gather experts at end " : "gather parameters at end ") + std::to_string(bytes), Phase::parameter_gather, nullptr,
                    [&](plan::BlockWriter& w) {
                      gather(w, part, bytes, plan::kComputeWaits);
                      if (profile().scatters_gradients && kind_ == DataParallelKind::zero1)   // all_gather of lists
                        w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = bytes, .bytes_written = bytes, .name = "parameters apart"}), host());
                    });
      }
    }
  }

  /// Source: DeepSpeed stage_1_and_2.py, reduce_independent_p_g_buckets_and_remove_grads.
  void into_bucket(const Unit& u, bool first) {
    const std::int64_t bytes = u.tape->trainable_bytes(stored_bytes());
    if (pattern_of(u).find('y') == std::string::npos) return;
    make_partition(first);
    stage_.call("gradients into bucket " + std::to_string(bytes) + " " + pattern_of(u), Phase::gradient_reduction, &u, [&](plan::BlockWriter& w) {
      w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = bytes, .bytes_written = bytes, .name = "copy to bucket"}), host());
      free_gradients_of(u, w);
    });
  }

  DataParallelKind kind_;
  bool overlap_reduce_ = true, overlap_gather_ = false;
  bool chained_ = false;        // experts' parameters are gathered bucket after bucket, as they are waited for
  DType reduce_dtype_ = DType::fp32;
  std::int64_t bucket_ = 0;
  std::array<std::int64_t, 2> pending_{};   // bytes to reduce: dense weights, experts
  bool first_ = true, last_ = true;
  bool buckets_made_ = false, two_buckets_ = false, partition_made_ = false, new_partition_ = false;
  std::uint32_t gather_frame_ = plan::kNoFrame;
  std::array<std::uint32_t, 2> scatter_frames_{plan::kNoFrame, plan::kNoFrame};
};

}  // namespace

std::unique_ptr<DataParallelWriter> make_replicated(Stage& stage) { return std::make_unique<Replicated>(stage); }

}  // namespace rehearse::strategies
