// Parameters sharded over the data-parallel group and gathered unit by unit: FSDP1, FSDP2, DeepSpeed ZeRO-3, Megatron-FSDP.
//
// Megatron-FSDP (Megatron-Core distributed/fsdp, megatron_fsdp.py and param_and_grad_buffer.py) gathers a layer straight from
// its shard into a bucket. What belongs to no layer (embedding, last norm, head) is gathered at its first use and stays for the
// step. Gradients lie in a bucket of the format in which they are reduced: Transformer Engine's products write into it, other
// gradients are copied there when the layer's backward is over. Reduced shards are added to main gradients that live on.
// Layers are gathered up to half a billion elements ahead of their use, and buckets under reduction are let go when they hold
// more than a billion elements, or when the micro-batch's backward is over.
#include <algorithm>
#include <deque>

#include "strategies/data/families.h"

namespace rehearse::strategies {

using model::KernelKind;
using plan::Category;
using plan::Frame;
using plan::GroupAxis;
using plan::Phase;
using plan::Stream;

namespace {

class Sharded final : public DataParallelWriter {
 public:
  explicit Sharded(Stage& stage) : DataParallelWriter(stage), kind_(stage.strategy.data_parallel.kind) {
    const auto& dp = stage.strategy.data_parallel;
    const Precision p = stage.strategy.training.precision;
    const DType compute = p == Precision::fp32 || p == Precision::tf32 ? DType::fp32 : p == Precision::fp16 ? DType::fp16 : DType::bf16;
    parameter_bytes_ = bits(dp.parameter_dtype.value_or(compute)) / 8;
    reduce_bytes_ = bits(dp.reduce_dtype.value_or(profile().reduce)) / 8;
    const bool pipelined = stage.sizes.pipeline > 1;
    reshard_ = dp.reshard_after_forward.value_or(!pipelined);
    defers_ = pipelined && kind_ == DataParallelKind::fsdp2;
    copies_out_ = kind_ == DataParallelKind::fsdp2;
    skips_sync_ = kind_ == DataParallelKind::fsdp1 && profile().accumulates_unsharded && !offloads_optimizer();
    megatron_ = kind_ == DataParallelKind::megatron_fsdp;
    if (megatron_) reduce_bytes_ = bits(dp.reduce_dtype.value_or(profile().gradient)) / 8;
  }

  void setup() override {
    std::int64_t shards = 0;
    for (const Part part : kParts) shards += divided_bytes(stage_.parameter_bytes(stored_bytes(), part), stored_bytes(), part);
    const Offload& o = stage_.strategy.memory.offload;
    if (!offloads_parameters()) persistent("parameter shards", shards, Category::parameter);
    else (o.parameters == MemoryTier::nvme ? stage_.rank_class.host.nvme : o.pinned ? stage_.rank_class.host.pinned : stage_.rank_class.host.pageable) += shards;
    if (megatron_) persistent("gradient shards", my_share().gradients, Category::gradient);
    persistent("optimizer states", part_of(my_share(), false).states, Category::optimizer);
    keep_on_host(my_share());
    // Sharded gradients appear with the first backward; with set_to_none they go after the step. They are counted here
    // because a training loop in steady state holds them at the peak.
    gathered_.assign(stage_.units.size(), false);
  }

  WeightGradient gradient_mode(bool first) const override { return first || !accumulates_in_place() ? WeightGradient::first : WeightGradient::accumulate; }
  std::int64_t gradient_element_bytes() const override { return writes_into_bucket() ? reduce_bytes_ : parameter_bytes_; }
  std::int64_t main_gradient_element_bytes() const override { return defers_ ? parameter_bytes_ : 4; }

  void begin_step() override {
    std::fill(gathered_.begin(), gathered_.end(), false);
    const std::int64_t bytes = my_share().gradients;
    if (megatron_ && !evaluates() && bytes > 0)
      stage_.call("zero gradients", Phase::optimizer, nullptr, [&](plan::BlockWriter& w) {
        w.kernel(builder().kernel({.kind = KernelKind::memset, .dtype = DType::fp32, .bytes_written = bytes, .name = "zero gradients"}), host());
      });
  }

  void before_forward(std::size_t unit, int) override {
    gather(unit, Phase::forward);
    if (megatron_)
      for (std::int64_t v = static_cast<std::int64_t>(unit) + 1, ahead = 0; v < static_cast<std::int64_t>(stage_.units.size()) && ahead < kAhead; ++v) ahead += gather_ahead(v, Phase::forward);
    wait_gather(unit, Phase::forward);
  }
  void after_forward(std::size_t unit, int) override {
    // What backward needs first stays (the last unit of the stage); the rest follows the reshard policy.
    if (reshard_ && unit + 1 != stage_.units.size()) release(unit, Phase::forward);
  }
  void before_backward(std::size_t unit, int) override {
    gather(unit, Phase::backward);
    wait_gather(unit, Phase::backward);
    // Explicit prefetch, in backward order: one ahead.
    if (megatron_) {
      if (stage_.units[unit].layer < 0) return;   // only layers have the hook
      for (std::int64_t v = static_cast<std::int64_t>(unit) - 1, ahead = 0; v >= 0 && ahead < kAhead; --v) ahead += gather_ahead(v, Phase::backward);
    } else if (unit > 0 && stage_.units[unit - 1].chunk == stage_.units[unit].chunk) gather(unit - 1, Phase::backward);
  }
  void after_input_gradients(std::size_t unit, int) override {
    if (!defers_) release(unit, Phase::backward);
  }
  void after_backward(std::size_t unit, int, bool first, bool last) override {
    if (defers_) return accumulate(unit, first);
    release(unit, Phase::backward);
    if (skips_sync_ && !(first && last)) {
      accumulate(unit, first);
      if (last) reduce(unit, true);
      return;
    }
    reduce(unit, first);
    if (megatron_ && unit == 0) free_reduced(0);
  }
  /// Under torch.distributed.pipelining every backward runs with set_requires_gradient_sync(False) and
  /// set_reshard_after_backward(False); after a chunk's last one its groups reshard and reduce, one after the other, and
  /// the compute stream waits for them. Source: PyTorch 2.13, pipelining/stage.py, backward_maybe_with_nosync.
  void end_chunk(std::size_t first, std::size_t last) override {
    if (!defers_) return;
    for (std::size_t u = first; u < last; ++u) {
      release(u, Phase::backward);
      reduce(u, true);
    }
    wait_for_reductions();
  }
  void unshard(std::size_t first, std::size_t last) override {
    for (std::size_t u = first; u < last; ++u) gather(u, Phase::forward);
  }
  void reshard(std::size_t first, std::size_t last) override {
    for (std::size_t u = first; u < last; ++u)
      if (gathered_[u]) release(u, Phase::backward);
  }

  void end_evaluation() override {
    ends_ = true;
    for (std::size_t u = 0; u < gathered_.size(); ++u)
      if (gathered_[u]) release(u, evaluates() ? Phase::forward : Phase::backward);
    ends_ = false;
  }
  void end_step() override {
    wait_for_reductions();
    end_evaluation();
    sum_copies(my_share());
    clip(my_share(), true);
    if (offloads_optimizer()) {
      update(part_of(my_share(), false));
      update_on_host(part_of(my_share(), true), offloads_parameters());
    } else {
      update(my_share());
    }
    for (const Unit& u : stage_.units)
      if (u.trainable() && !gradients_leave() && !megatron_)
        stage_.call("free gradient shard " + std::to_string(u.tape->weights.size()), Phase::optimizer, &u, [&](plan::BlockWriter& w) { w.free(extra(u, kShard), Frame::unit); });
  }

 private:
  // Slots of the unit frame beyond one per weight.
  enum Extra : std::uint32_t { kGathered, kUnsharded, kEvent, kShard, kAccumulated, kFetched, kBucket, kReduced };
  static_assert(kReduced < kForeachSlot);
  static std::uint32_t extra(const Unit& u, Extra which) { return static_cast<std::uint32_t>(u.tape->weights.size()) + which; }
  static constexpr std::uint32_t kLeaving = Stage::kPersistentSlots - 14, kLeft = Stage::kPersistentSlots - 15;   // gradient shard on its way down
  static constexpr std::uint32_t kReduceInput = Stage::kPersistentSlots - 4;  // one reduce-scatter input in flight

  std::int64_t divided(std::int64_t elements, Part part) const { return (elements + stage_.sizes.sharing(part) - 1) / stage_.sizes.sharing(part); }
  bool offloads_parameters() const { return stage_.strategy.memory.offload.parameters != MemoryTier::device; }
  /// Reduced gradient shards go down at once and are not kept.
  bool gradients_leave() const { return offloads_optimizer() && stage_.strategy.memory.offload.ratio == 1; }
  /// The same of bytes in whole elements.
  std::int64_t divided_bytes(std::int64_t bytes, std::int64_t element, Part part) const { return divided(bytes / element, part) * element; }
  Share my_share() const { return share(true, main_bytes()); }
  /// Of a gradient shard, as it is kept.
  std::int64_t main_bytes() const { return megatron_ ? bits(profile().gradient) / 8 : stored_bytes(); }
  bool writes_into_bucket() const { return megatron_ && profile().fused_gradient_accumulation; }
  std::int64_t gather_ahead(std::int64_t index, Phase phase) {
    gather(static_cast<std::size_t>(index), phase);
    return stage_.units[static_cast<std::size_t>(index)].tape->elements();
  }
  /// Waits for the oldest reductions until the others hold no more than this; their buckets go.
  void free_reduced(std::int64_t most) {
    for (; reducing_elements_ > most; reducing_.pop_front()) {
      const Unit& u = stage_.units[reducing_.front()];
      reducing_elements_ -= reduced_elements(u);
      stage_.call("free reduced " + std::to_string(u.tape->weights.size()), Phase::gradient_reduction, &u, [&](plan::BlockWriter& w) {
        w.wait(Stream::compute, extra(u, kReduced), Frame::unit);
        w.free(extra(u, kBucket), Frame::unit);
      });
    }
  }
  /// Gathered once, for the whole step.
  bool stays(std::size_t index) const { return megatron_ && stage_.units[index].layer < 0 && !ends_; }
  /// A collective over each group that shares some of a unit. `bytes`: of each part, dense and experts.
  void over_groups(plan::BlockWriter& w, CollectiveKind kind, const std::array<std::int64_t, 2>& bytes, const char* name, Stream stream, int sync) {
    for (std::size_t i = 0; i < kParts.size(); ++i)
      if (bytes[i] > 0 && stage_.sizes.sharing(kParts[i]) > 1) w.collective(builder().collective({kind, axis_of(kParts[i]), Bytes{bytes[i]}, name}), stream, sync, profile().collective_host);
  }
  /// Elements whose gradients a unit reduces. FSDP1 keeps one flat parameter per unit: what is frozen in it is reduced as
  /// zeros (PyTorch FullyShardedDataParallel, use_orig_params), unless what is trained is wrapped by itself.
  std::int64_t reduced_elements(const Unit& u, Part part = Part::all) const { return kind_ == DataParallelKind::fsdp1 && u.trainable() && !wraps_adapters() ? u.tape->elements(part) : u.tape->trainable_elements(part); }
  bool wraps_adapters() const {
    const TuningKind tuning = stage_.strategy.tuning.kind;
    return profile().wraps_adapters && (tuning == TuningKind::lora || tuning == TuningKind::qlora);
  }
  std::int64_t gathered_bytes(const Unit& u, Part part = Part::all) const { return u.tape->parameter_bytes(parameter_bytes_, part); }
  /// Blocks are shared by units of equal sizes that train the same of their weights.
  std::string key(const char* what, const Unit& u) const {
    std::string text = std::string(what) + " " + std::to_string(u.tape->elements()) + " " + std::to_string(u.tape->elements(Part::experts)) + " ";
    for (const Weight& w : u.tape->weights) text += w.trainable && !w.gradient_elsewhere ? 'y' : 'n';
    return text;
  }

  static void free_gradients(const Unit& u, plan::BlockWriter& w) {
    for (std::size_t i = 0; i < u.tape->weights.size(); ++i)
      if (u.tape->weights[i].trainable && !u.tape->weights[i].gradient_elsewhere) w.free(static_cast<std::uint32_t>(i), Frame::unit);
  }

  void gather(std::size_t index, Phase phase) {
    if (gathered_[index]) return;
    gathered_[index] = true;
    const Unit& u = stage_.units[index];
    const std::int64_t bytes = gathered_bytes(u);
    if (bytes == 0) return;
    stage_.call(key("gather", u), Phase::parameter_gather, &u, [&](plan::BlockWriter& w) {
      const std::int64_t dense = gathered_bytes(u, Part::dense), experts = gathered_bytes(u, Part::experts);
      const std::int64_t shard = divided(dense, Part::dense) + divided(experts, Part::experts);
      w.alloc(extra(u, kGathered), bytes, Category::communication, Frame::unit, Stream::data_gather);
      if (offloads_parameters()) {  // the shard comes up first
        const Offload& o = stage_.strategy.memory.offload;
        const std::uint32_t there = Stage::kPersistentSlots - 9;
        w.alloc(extra(u, kFetched), shard / parameter_bytes_ * stored_bytes(), Category::communication, Frame::unit, Stream::data_gather);
        w.record(Stream::data_gather, there);  // its bytes were the last gather's
        w.wait(Stream::to_device, there);
        w.copy(builder().copy({plan::CopySpec::Direction::host_to_device, o.pinned, Bytes{shard / parameter_bytes_ * stored_bytes()}, o.parameters == MemoryTier::nvme}), Stream::to_device, 0, host());
        w.record(Stream::to_device, there);
        w.wait(Stream::data_gather, there);
      }
      // copy-in casts the local shard into the all-gather input
      if (!megatron_) w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = shard / parameter_bytes_ * stored_bytes(), .bytes_written = shard, .name = "gather copy-in"}), host(), Stream::data_gather);
      if (offloads_parameters()) w.free(extra(u, kFetched), Frame::unit);
      over_groups(w, CollectiveKind::all_gather, {dense, experts}, "parameter gather", Stream::data_gather, 0);
      w.record(Stream::data_gather, extra(u, kEvent), Frame::unit);
    });
    (void)phase;
  }

  void wait_gather(std::size_t index, Phase phase) {
    const Unit& u = stage_.units[index];
    const std::int64_t bytes = gathered_bytes(u);
    if (bytes == 0 || kept_[index]) return;
    kept_[index] = defers_ || !reshard_ || index + 1 == stage_.units.size() || stays(index);
    stage_.call(key("use gathered", u), phase, &u, [&](plan::BlockWriter& w) {
      w.wait(Stream::compute, extra(u, kEvent), Frame::unit);
      if (copies_out_) {
        w.alloc(extra(u, kUnsharded), bytes, Category::parameter, Frame::unit);
        w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = bytes, .bytes_written = bytes, .name = "gather copy-out"}), host());
        w.free(extra(u, kGathered), Frame::unit);
      }
    });
  }

  void release(std::size_t index, Phase phase) {
    if (stays(index)) return;
    const Unit& u = stage_.units[index];
    gathered_[index] = false;
    kept_[index] = false;
    if (u.tape->elements() == 0) return;
    stage_.call(key("reshard", u), phase, &u, [&](plan::BlockWriter& w) {
      w.free(extra(u, kUnsharded), Frame::unit);
      w.free(extra(u, kGathered), Frame::unit);  // without copy-out, or gathered ahead and not used
    });
  }

  bool accumulates_in_place() const { return defers_ && reduce_bytes_ == parameter_bytes_; }

  void wait_for_reductions() {
    if (combines_replicas()) sum_replicas();
    stage_.call("wait gradients", Phase::gradient_reduction, nullptr, [&](plan::BlockWriter& w) {
      for (Stream s : {Stream::data_reduce, Stream::data_replicate}) {
        w.record(s, Stage::kPersistentSlots - 2);
        w.wait(Stream::compute, Stage::kPersistentSlots - 2);
      }
      w.free(kReduceInput);
      w.free(kLeaving);
    });
  }

  /// Whole gradients add up until their reduction comes: FSDP2's in the format of that (torch FSDPParam.to_accumulated_grad_if_needed,
  /// accumulate_unsharded_grad_if_needed), FSDP1's as the flat parameter's `.grad`, whose frozen parts are zeros.
  void accumulate(std::size_t index, bool first) {
    const Unit& u = stage_.units[index];
    const std::int64_t elements = reduced_elements(u), made = skips_sync_ ? elements * parameter_bytes_ : u.tape->trainable_bytes(parameter_bytes_),
                       sum = skips_sync_ ? made : u.tape->trainable_bytes(reduce_bytes_);
    if (accumulates_in_place()) return;
    if (elements == 0) {
      stage_.call(key("drop gradients", u), Phase::gradient_reduction, &u, [&](plan::BlockWriter& w) { free_gradients(u, w); });
      return;
    }
    stage_.call(key(first ? "accumulate first" : "accumulate", u), Phase::backward, &u, [&](plan::BlockWriter& w) {
      if (first) w.alloc(extra(u, kAccumulated), sum, Category::gradient, Frame::unit);
      w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = made + (first ? 0 : sum), .bytes_written = sum, .name = "accumulate unsharded gradient"}), host());
      free_gradients(u, w);
    });
  }

  void reduce(std::size_t index, bool first) {
    const Unit& u = stage_.units[index];
    const std::int64_t elements = reduced_elements(u);
    if (elements == 0) {  // a tied table's gradient may lie here, though another unit reduces it
      stage_.call(key("drop gradients", u), Phase::gradient_reduction, &u, [&](plan::BlockWriter& w) { free_gradients(u, w); });
      return;
    }
    const std::int64_t dense = reduced_elements(u, Part::dense), experts = elements - dense;
    const std::int64_t bytes = elements * reduce_bytes_, shard = divided(dense, Part::dense) + divided(experts, Part::experts);
    if (megatron_) {
      free_reduced(kReducing);
      reducing_.push_back(index);
      reducing_elements_ += elements;
    }
    stage_.call(key(first ? "reduce first" : "reduce", u), Phase::gradient_reduction, &u, [&](plan::BlockWriter& w) {
      // The previous unit's input is freed once its reduction is through; then this one is filled.
      if (!megatron_) {
        w.record(Stream::data_reduce, Stage::kPersistentSlots - 3);
        w.wait(Stream::compute, Stage::kPersistentSlots - 3);
        w.free(kReduceInput);
      }
      if (writes_into_bucket()) free_gradients(u, w);   // they are the bucket
      if (megatron_) w.alloc(extra(u, kBucket), bytes, Category::communication, Frame::unit);
      else w.alloc(kReduceInput, bytes, Category::communication);
      if (!writes_into_bucket()) w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = elements * (defers_ ? reduce_bytes_ : parameter_bytes_), .bytes_written = bytes, .name = "reduce copy-in"}), host());
      if (!writes_into_bucket()) free_gradients(u, w);
      if (defers_ || skips_sync_) w.free(extra(u, kAccumulated), Frame::unit);
      if (gradients_leave()) {  // the last one has been copied down before its bytes are used again
        w.wait(Stream::data_reduce, kLeft);
        w.free(kLeaving);
        w.alloc(kLeaving, shard * stored_bytes(), Category::gradient, Frame::own, Stream::data_reduce);
      } else if (first && !megatron_) {
        w.alloc(extra(u, kShard), shard * stored_bytes(), Category::gradient, Frame::unit, Stream::data_reduce);
      }
      over_groups(w, CollectiveKind::reduce_scatter, {dense * reduce_bytes_, experts * reduce_bytes_}, "gradient reduction", Stream::data_reduce, plan::kAfterCompute);
      if (stage_.sizes.replicate > 1 && !combines_replicas()) {
        w.record(Stream::data_reduce, Stage::kPersistentSlots - 5);
        w.wait(Stream::data_replicate, Stage::kPersistentSlots - 5);
        w.collective(builder().collective({CollectiveKind::all_reduce, GroupAxis::data_replicate, Bytes{shard * reduce_bytes_}, "replica reduction"}), Stream::data_replicate, plan::kAfterCompute,
                     profile().collective_host);
      }
      if (offloads_optimizer()) {
        copy_gradients(w, shard * stored_bytes(), stage_.sizes.replicate > 1 ? Stream::data_replicate : Stream::data_reduce, first);
        if (gradients_leave()) w.record(Stream::to_host, kLeft);
      } else if (!first || megatron_) {
        w.kernel(builder().kernel({.kind = KernelKind::elementwise, .dtype = DType::fp32, .bytes_read = 2 * shard * main_bytes(), .bytes_written = shard * main_bytes(), .name = "accumulate shard"}),
                 host(), Stream::data_reduce);
      }
      if (megatron_) w.record(Stream::data_reduce, extra(u, kReduced), Frame::unit);
    });
    if (!combines_replicas()) return;
    unsummed_ += shard * reduce_bytes_;
    if (unsummed_ >= static_cast<std::int64_t>(profile().replica_bucket.value)) sum_replicas();
  }

  /// XLA's combiner joins all-reduces until they reach its threshold.
  bool combines_replicas() const { return profile().replica_bucket > Bytes{0} && stage_.sizes.replicate > 1 && !offloads_optimizer(); }
  void sum_replicas() {
    const std::int64_t bytes = unsummed_;
    unsummed_ = 0;
    if (bytes == 0) return;
    stage_.call("sum replicas " + std::to_string(bytes), Phase::gradient_reduction, nullptr, [&](plan::BlockWriter& w) {
      w.record(Stream::data_reduce, Stage::kPersistentSlots - 5);
      w.wait(Stream::data_replicate, Stage::kPersistentSlots - 5);
      w.collective(builder().collective({CollectiveKind::all_reduce, GroupAxis::data_replicate, Bytes{bytes}, "replica reduction"}), Stream::data_replicate, plan::kAfterCompute, profile().collective_host);
    });
  }

  // megatron_fsdp.py: suggested_communication_unit_size is at least 1e9 elements, half of it for gathering.
  static constexpr std::int64_t kReducing = 1'000'000'000, kAhead = kReducing / 2;

  DataParallelKind kind_;
  std::int64_t parameter_bytes_ = 2, reduce_bytes_ = 4;
  bool reshard_ = true, copies_out_ = true, megatron_ = false;
  std::deque<std::size_t> reducing_;   // megatron: units whose buckets are live
  std::int64_t reducing_elements_ = 0;
  bool ends_ = false;     // the step is over: nothing stays gathered
  bool defers_ = false;   // gradients are reduced once per step and chunk, not per micro-batch
  bool skips_sync_ = false;  // FSDP1 under no_sync: all but the last micro-batch's gradients stay whole on every GPU
  std::int64_t unsummed_ = 0;   // bytes of gradient shards that wait for their sum over replicas
  std::vector<bool> gathered_;
  std::map<std::size_t, bool> kept_;
};

}  // namespace

std::unique_ptr<DataParallelWriter> make_sharded(Stage& stage) { return std::make_unique<Sharded>(stage); }

}  // namespace rehearse::strategies
