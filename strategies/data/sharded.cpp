// Parameters sharded over the data-parallel group and gathered unit by unit: FSDP1, FSDP2. Leaves out what
// these share with Megatron-FSDP (sharded_writer.h).
#include "strategies/data/families.h"
#include "strategies/data/sharded_writer.h"

namespace rehearse::strategies {

using model::KernelKind;
using plan::Category;
using plan::Frame;
using plan::Phase;
using plan::Stream;

namespace {

class Sharded final : public ShardedWriter {
 public:
  // accelerate's policy under autocast sends gradients as it gathers parameters (utils/dataclasses.py, set_mixed_precision).
  explicit Sharded(Stage& stage) : ShardedWriter(stage, stage.profile.autocast ? compute_dtype(stage) : stage.profile.reduce), kind_(stage.strategy.data_parallel.kind) {
    defers_ = stage.sizes.pipeline > 1 && kind_ == DataParallelKind::fsdp2;
    whole_states_ = kind_ == DataParallelKind::fsdp1;
    copies_out_ = kind_ == DataParallelKind::fsdp2;
    skips_sync_ = !defers_ && profile().accumulates_unsharded && !offloads_optimizer();
    has_root_ = profile().root_unit && stage.sizes.pipeline == 1 && stage.units.size() > 1;
  }

  void setup() override {
    const std::int64_t shards = parameter_shards();
    const Offload& o = stage_.strategy.memory.offload;
    persistent("quantisation states", whole_states(), Category::parameter);
    if (has_root_ && kind_ == DataParallelKind::fsdp1) wrap();
    else if (!offloads_parameters()) persistent("parameter shards", shards, Category::parameter);
    if (offloads_parameters()) (o.parameters == MemoryTier::nvme ? stage_.rank_class.host.nvme : o.pinned ? stage_.rank_class.host.pinned : stage_.rank_class.host.pageable) += shards;
    keep_states(part_of(my_share(), false));
    stage_.rank_class.unified = paged_bytes();
    keep_on_host(my_share());
    // Sharded gradients appear with the first backward; with set_to_none they go after the step. They are counted here
    // because a training loop in steady state holds them at the peak.
  }

  WeightGradient gradient_mode(bool first) const override { return first || !accumulates_in_place() ? WeightGradient::first : WeightGradient::accumulate; }
  std::int64_t gradient_element_bytes() const override { return parameter_bytes_; }
  std::int64_t main_gradient_element_bytes() const override { return defers_ ? parameter_bytes_ : 4; }

  /// The end of the recomputation's forward gives the parameters up, and the hooks that it made gather them again. Their place is free for no longer
  /// than the host takes. Source: torch/distributed/fsdp/_runtime_utils.py, _post_forward, _pre_backward_hook; seen with PyTorch 2.13.
  std::optional<std::uint32_t> gather_again(const Unit& u) const override {
    const std::int64_t bytes = gathered_bytes(u, Part::dense);
    if (!entered_anew(u) || !reshard_ || bytes == 0 || stage_.sizes.sharing(Part::dense) <= 1) return std::nullopt;
    return stage_.builder.collective({CollectiveKind::all_gather, axis_of(Part::dense), Bytes{bytes}, "parameter gather"});
  }

  void before_forward(std::size_t unit, int) override {
    hooks(unit, Phase::forward, profile().unit_host);
    gather(unit);
    if (of_root(unit)) gather(unit == 0 ? stage_.units.size() - 1 : 0);
    wait_gather(unit, Phase::forward);
  }
  void before_backward(std::size_t unit, int) override {
    hooks(unit, Phase::backward, profile().unit_backward_host + (entered_anew(stage_.units[unit]) ? profile().unit_host : Duration{}));
    gather(unit);
    wait_gather(unit, Phase::backward);
    // Explicit prefetch, in backward order: one ahead.
    if (unit > 0 && stage_.units[unit - 1].chunk == stage_.units[unit].chunk && !entered_anew(stage_.units[unit - 1])) gather(unit - 1);
  }
  /// Under FULL_SHARD too the root unit stays after forward. Source: PyTorch torch/distributed/fsdp/_runtime_utils.py, _post_forward_reshard
  /// (`not state._is_root`); _fully_shard/_fsdp_state.py, _lazy_init (the root's reshard_after_forward is False unless asked for).
  void after_forward(std::size_t unit, int micro_batch) override {
    if (!of_root(unit)) ShardedWriter::after_forward(unit, micro_batch);
    let_copied_out_go(unit);
  }
  void after_input_gradients(std::size_t unit, int) override {
    if (!defers_ && !of_root(unit) && !loss_calls(unit)) release(unit, Phase::backward);
  }
  void after_backward(std::size_t unit, int, bool first, bool last) override {
    if (of_root(unit)) {  // its gradients are there when the embedding's are
      if (unit != 0) return;
      finish(stage_.units.size() - 1, first, last);
    }
    finish(unit, first, last);
  }
  void finish(std::size_t unit, bool first, bool last) {
    if (defers_) return accumulate(unit, first);
    if (!loss_calls(unit)) release(unit, Phase::backward);
    if (skips_sync_ && !(first && last)) {
      accumulate(unit, first);
      if (last) reduce(unit, true);
    } else {
      reduce(unit, first);
    }
    release(unit, Phase::backward);
  }
  /// An output layer that the loss calls piece by piece: what it gathered stays until the loss is done with the last one's gradients.
  /// Source: torchtitan components/loss.py, ChunkedLossWrapper (set_reshard_after_backward(False), reshard()).
  bool loss_calls(std::size_t unit) const { return unit + 1 == stage_.units.size() && profile().loss == LossKind::chunked_linear; }
  /// Under torch.distributed.pipelining every backward runs with set_requires_gradient_sync(False) and
  /// set_reshard_after_backward(False); after a chunk's last one its groups reshard and reduce, one after the other, and
  /// the compute stream waits for them. Source: PyTorch 2.13, pipelining/stage.py, backward_maybe_with_nosync.
  void end_chunk(std::size_t first, std::size_t last) override {
    if (!defers_) return;
    for (std::size_t u = first; u < last; ++u) {
      release(u, Phase::backward);
      reduce(u, true);
    }
    wait_gradients();
  }
  void unshard(std::size_t first, std::size_t last) override {
    for (std::size_t u = first; u < last; ++u) gather(u);
  }
  void reshard(std::size_t first, std::size_t last) override {
    for (std::size_t u = first; u < last; ++u)
      if (gathered_[u]) release(u, Phase::backward);
  }

  void end_step() override {
    wait_gradients();
    end_evaluation();
    sum_copies(my_share());
    clip(my_share(), true);
    if (offloads_optimizer()) {
      update(part_of(my_share(), false));
      update_on_host({part_of(my_share(), true)}, offloads_parameters() ? Return::nothing : Return::stored);
    } else if (stage_.strategy.memory.paged_optimizer) {
      update_paged(stored_bytes());
    } else {
      update(my_share());
    }
    if (stage_.strategy.data_parallel.fp8_gather == NarrowGather::scaled_ahead) scale_ahead();
    for (const Unit& u : stage_.units)
      if (u.trainable() && !gradients_leave())
        stage_.call("free gradient shard " + std::to_string(u.tape->weights.size()), Phase::optimizer, &u, [&](plan::BlockWriter& w) { w.free(extra(u, kShard), Frame::unit); });
  }

 private:
  static constexpr std::uint32_t kLeaving = Stage::kPersistentSlots - 14, kLeft = Stage::kPersistentSlots - 15;   // gradient shard on its way down
  static constexpr int kScaleOperators = 4;   // torchao's amax_to_scale: to fp64, clamp, divide, to fp32
  static constexpr std::uint32_t kReduceInput = Stage::kPersistentSlots - 4;  // one reduce-scatter input in flight
  static constexpr std::uint32_t kCastShard = Stage::kPersistentSlots - 38;
  static constexpr std::uint32_t kCopiedOut = Stage::kPersistentSlots - 37;   // what the last unit of forward gathered

  /// Reduced gradient shards go down at once and are not kept.
  bool gradients_leave() const { return offloads_optimizer() && stage_.strategy.memory.offload.ratio == 1; }
  Share my_share() const { return share(true, stored_bytes()); }
  /// Elements whose gradients a unit reduces. FSDP1 keeps one flat parameter per unit: what is frozen in it is reduced as
  /// zeros (PyTorch FullyShardedDataParallel, use_orig_params), unless what is trained is wrapped by itself.
  std::int64_t reduced_elements(const Unit& u, Part part = Part::all) const { return kind_ == DataParallelKind::fsdp1 && u.trainable() && !wraps_adapters() ? u.tape->elements(part) : u.tape->trainable_elements(part); }
  /// FSDP1 gathers ahead what has hooks of its backward. A unit within a reentrant checkpoint first ran without a graph, and has none until
  /// the checkpoint enters it anew. Source: torch/distributed/fsdp/_runtime_utils.py, _register_pre_backward_hooks (`if not
  /// torch.is_grad_enabled(): return output`), _get_handle_to_prefetch (`_needs_pre_backward_unshard`).
  bool entered_anew(const Unit& u) const { return kind_ == DataParallelKind::fsdp1 && u.checkpoint && profile().reentrant_checkpoint && !profile().checkpoints_in_units; }
  bool wraps_adapters() const {
    const TuningKind tuning = stage_.strategy.tuning.kind;
    return profile().wraps_adapters && (tuning == TuningKind::lora || tuning == TuningKind::qlora);
  }

  /// Embedding, final norm and output layer, where they are the unit that holds the others.
  bool of_root(std::size_t unit) const { return has_root_ && (unit == 0 || unit + 1 == stage_.units.size()); }

  /// FSDP1 makes its units one after the other, the root last: the module's parameters come to the device, are copied into a flat parameter,
  /// a shard is copied out of that, and what it was made from goes. The allocator's cache keeps the places.
  /// Source: PyTorch torch/distributed/fsdp/_init_utils.py (_init_param_handle_from_module: device_id), _flat_param.py (flatten_tensors, shard).
  void wrap() {
    for (std::size_t u = 1; u + 1 < stage_.units.size(); ++u) make_unit(stage_.units[u], nullptr);
    const Unit& first = stage_.units.front();
    stage_.call(key("place parameters", first), Phase::setup, &first, [&](plan::BlockWriter& w) { place(first, w); });
    make_unit(stage_.units.back(), &first);
    stage_.call(key("drop parameters", first), Phase::setup, &first, [&](plan::BlockWriter& w) { drop(first, w); });
  }

  bool owns(const Weight& weight) const { return !weight.parameter_elsewhere && placed(weight) > 0; }
  std::int64_t placed(const Weight& weight) const { return Tape::parameter_bytes(weight, stored_bytes()) - weight.packed_states; }

  void place(const Unit& u, plan::BlockWriter& w) const {
    for (std::size_t i = 0; i < u.tape->weights.size(); ++i)
      if (owns(u.tape->weights[i])) w.alloc(static_cast<std::uint32_t>(i), placed(u.tape->weights[i]), Category::temporary, Frame::unit);
  }
  void drop(const Unit& u, plan::BlockWriter& w) const {
    for (std::size_t i = 0; i < u.tape->weights.size(); ++i)
      if (owns(u.tape->weights[i])) w.free(static_cast<std::uint32_t>(i), Frame::unit);
  }

  /// `with`: whose parameters are in the same unit, and are there.
  void make_unit(const Unit& u, const Unit* with) {
    std::int64_t whole = 0, shard = 0;
    for (const Part part : kParts) {
      const std::int64_t bytes = shared_bytes(u, stored_bytes(), part) + (with != nullptr ? shared_bytes(*with, stored_bytes(), part) : 0);
      whole += bytes;
      shard += divided(bytes / stored_bytes(), part) * stored_bytes();
    }
    if (whole == 0) return;
    stage_.call(key("make unit", u), Phase::setup, &u, [&](plan::BlockWriter& w) {
      place(u, w);
      w.alloc(extra(u, kGathered), whole, Category::temporary, Frame::unit);
      w.alloc(extra(u, kParameters), shard, Category::parameter, Frame::unit);
      w.free(extra(u, kGathered), Frame::unit);
      if (offloads_parameters()) w.free(extra(u, kParameters), Frame::unit);
      drop(u, w);
    });
  }

  /// Python around a unit's pass (_runtime_utils.py; _fsdp_param_group.py). Adapters' matrices that are units of their own have it too.
  void hooks(std::size_t index, Phase phase, Duration each) {
    if (each == Duration{} || (of_root(index) && index != 0)) return;
    const Unit& u = stage_.units[index];
    std::int64_t units = 1;
    if (wraps_adapters())
      for (const Weight& weight : u.tape->weights) units += weight.adapter ? 1 : 0;
    stage_.call("hooks of units " + std::to_string(units) + " " + std::to_string(each.count()), phase, nullptr, [&](plan::BlockWriter& w) { w.host(units * each); });
  }

  void gather(std::size_t index) {
    if (gathered_[index]) return;
    gathered_[index] = true;
    const Unit& u = stage_.units[index];
    const std::int64_t bytes = gathered_bytes(u);
    if (bytes == 0) return;
    stage_.call(key("gather", u), Phase::parameter_gather, &u, [&](plan::BlockWriter& w) {
      const std::int64_t dense = gathered_bytes(u, Part::dense), experts = gathered_bytes(u, Part::experts);
      const std::int64_t shard = divided(dense, Part::dense) + divided(experts, Part::experts), narrow = divided(u.tape->narrow_elements(), Part::dense);
      const std::int64_t wide_stored = (shard - narrow) / parameter_bytes_ * stored_bytes();
      if (offloads_parameters()) {  // the shard comes up first
        const Offload& o = stage_.strategy.memory.offload;
        const std::uint32_t there = Stage::kPersistentSlots - 9;
        w.alloc(extra(u, kFetched), wide_stored, Category::communication, Frame::unit, Stream::data_gather);
        w.record(Stream::data_gather, there);  // its bytes were the last gather's
        w.wait(Stream::to_device, there);
        w.copy(builder().copy({plan::CopySpec::Direction::host_to_device, o.pinned, Bytes{wide_stored}, o.parameters == MemoryTier::nvme}), Stream::to_device, 0, host());
        w.record(Stream::to_device, there);
        w.wait(Stream::data_gather, there);
      }
      for (const Weight& weight : u.tape->weights)
        if (gathered_narrow(weight)) cast_shard(weight, w);
      // FSDP2 casts the local shard into a flat tensor of its own before it copies it in (_fsdp_collectives.py, _get_param_all_gather_inputs).
      const bool casts = copies_out_ && stored_bytes() != parameter_bytes_ && shard > narrow;
      if (casts) {
        w.alloc(kCastShard, shard - narrow, Category::communication, Frame::own, Stream::data_gather);
        w.kernel(builder().kernel({.kind = KernelKind::converting, .bytes_read = wide_stored, .bytes_written = shard - narrow, .elements = (shard - narrow) / parameter_bytes_, .name = "cast shards"}), host(), Stream::data_gather);
      }
      w.alloc(extra(u, kGathered), bytes, Category::communication, Frame::unit, Stream::data_gather);
      w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = casts ? shard : wide_stored + narrow, .bytes_written = shard, .name = "gather copy-in"}), host(), Stream::data_gather);
      if (offloads_parameters()) w.free(extra(u, kFetched), Frame::unit);
      over_groups(w, CollectiveKind::all_gather, {dense, experts}, "parameter gather", Stream::data_gather, 0);
      if (casts) w.free(kCastShard);
      w.record(Stream::data_gather, extra(u, kEvent), Frame::unit);
    });
  }

  /// A weight's shard in 8 bits, operator by operator: scaled, clamped and cast in fp32. Its scale is there, or is found first: the
  /// largest of the shard, of all ranks, and four operators on that number. Source: torchao float8/fsdp_utils.py,
  /// WeightWithDynamicFloat8CastTensor.fsdp_pre_all_gather; float8_scaling_utils.py; float8_utils.py, tensor_to_amax, amax_to_scale.
  void cast_shard(const Weight& weight, plan::BlockWriter& w) {
    const std::int64_t elements = divided(weight.elements, Part::dense), stored = elements * stored_bytes(), wide = elements * 4;
    const auto kernel = [&](KernelKind kind, std::int64_t read, std::int64_t written, const char* name) {
      w.kernel(builder().kernel({.kind = kind, .dtype = DType::fp32, .bytes_read = read, .bytes_written = written, .name = name}), host(), Stream::data_gather);
    };
    if (stage_.strategy.data_parallel.fp8_gather == NarrowGather::scaled_by_weight) {
      kernel(KernelKind::elementwise, stored, stored, "shard magnitude");
      kernel(KernelKind::reduction, stored, 4, "shard maximum");
      over_groups(w, CollectiveKind::all_reduce, {4, 0}, "weight maximum", Stream::data_gather, 0);
      for (int i = 0; i < kScaleOperators; ++i) kernel(KernelKind::elementwise, 8, 8, "weight scale");
    }
    kernel(KernelKind::elementwise, stored, wide, "scale shard");
    kernel(KernelKind::elementwise, wide, wide, "clamp shard");
    kernel(KernelKind::elementwise, wide, elements, "cast shard");
  }

  /// The scales of all weights for the next step. Source: torchao float8/fsdp_utils.py, precompute_float8_dynamic_scale_for_fsdp.
  void scale_ahead() {
    std::int64_t weights = 0, bytes = 0;
    for (const Unit& u : stage_.units)
      for (const Weight& weight : u.tape->weights)
        if (gathered_narrow(weight)) ++weights, bytes += divided(weight.elements, Part::dense) * stored_bytes();
    if (weights == 0) return;
    stage_.call("scale weights ahead " + std::to_string(bytes), Phase::optimizer, nullptr, [&](plan::BlockWriter& w) {
      const auto kernel = [&](KernelKind kind, std::int64_t read, std::int64_t written, const char* name) {
        w.kernel(builder().kernel({.kind = kind, .dtype = DType::fp32, .bytes_read = read, .bytes_written = written, .name = name}), host());
      };
      kernel(KernelKind::reduction, bytes, weights * 4, "shard maxima");
      kernel(KernelKind::elementwise, weights * 4, weights * 4, "stack maxima");
      if (stage_.sizes.shard > 1)
        w.collective(builder().collective({CollectiveKind::all_reduce, plan::GroupAxis::data, Bytes{weights * 4}, "weight maxima"}), Stream::data_reduce, plan::kAfterCompute | plan::kComputeWaits, profile().collective_host);
      for (int i = 0; i < kScaleOperators; ++i) kernel(KernelKind::elementwise, weights * 8, weights * 8, "weight scales");
    });
  }

  /// FSDP2 lets go of what it gathered in forward when the next unit's is copied out, so that a copy and the next gather overlap: two of them are there.
  /// Source: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, wait_for_unshard (AllGatherState); the last one goes with the root's forward
  /// (_fsdp_state.py, _post_forward), before the loss where the output layer is called by it. What pipeline stages gather ahead (unshard(async_op=True)) goes at once.
  void wait_gather(std::size_t index, Phase phase) {
    const Unit& u = stage_.units[index];
    const std::int64_t bytes = gathered_bytes(u);
    if (bytes == 0 || kept_[index]) return;
    kept_[index] = defers_ || !reshard_ || of_root(index) || index + 1 == stage_.units.size();
    const bool in_forward = phase == Phase::forward && copies_out_ && !defers_, holds = in_forward && !loss_calls(index);
    stage_.call(key(holds ? "use gathered and hold it" : "use gathered", u), phase, &u, [&](plan::BlockWriter& w) {
      w.wait(Stream::compute, extra(u, kEvent), Frame::unit);
      if (!copies_out_) return;
      if (in_forward) w.free(kCopiedOut);
      w.alloc(extra(u, kUnsharded), bytes, Category::parameter, Frame::unit);
      w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = bytes, .bytes_written = bytes, .name = "gather copy-out"}), host());
      if (holds) w.move(kCopiedOut, extra(u, kGathered), Frame::unit);
      else w.free(extra(u, kGathered), Frame::unit);
    });
  }
  void let_copied_out_go(std::size_t unit) {
    if (!copies_out_ || defers_ || unit + 1 != stage_.units.size()) return;
    stage_.call("let the last gathered go", Phase::forward, nullptr, [](plan::BlockWriter& w) { w.free(kCopiedOut); });
  }

  /// FSDP2 keeps the sum of whole gradients in the format of their reduction.
  bool sums_in_reduce_format() const { return defers_ || (skips_sync_ && kind_ == DataParallelKind::fsdp2); }
  bool accumulates_in_place() const { return sums_in_reduce_format() && reduce_bytes_ == parameter_bytes_; }

  void wait_gradients() {
    if (combines_replicas()) sum_replicas();
    stage_.call("wait gradients", Phase::gradient_reduction, nullptr, [](plan::BlockWriter& w) {
      wait_for_reductions(w);
      w.free(kReduceInput);
      w.free(kLeaving);
    });
  }

  /// Whole gradients add up until their reduction comes: FSDP2's in the format of that (torch FSDPParam.to_accumulated_grad_if_needed,
  /// accumulate_unsharded_grad_if_needed), FSDP1's as the flat parameter's `.grad`, whose frozen parts are zeros.
  void accumulate(std::size_t index, bool first) {
    const Unit& u = stage_.units[index];
    const std::int64_t elements = reduced_elements(u), made = sums_in_reduce_format() ? u.tape->trainable_bytes(parameter_bytes_) : elements * parameter_bytes_,
                       sum = sums_in_reduce_format() ? u.tape->trainable_bytes(reduce_bytes_) : made;
    if (accumulates_in_place()) return;
    if (elements == 0) return drop_gradients(u);
    stage_.call(key(first ? "accumulate first" : "accumulate", u), Phase::backward, &u, [&](plan::BlockWriter& w) {
      if (first) w.alloc(extra(u, kAccumulated), sum, Category::gradient, Frame::unit);
      w.kernel(builder().kernel({.kind = made == sum ? KernelKind::elementwise : KernelKind::converting, .bytes_read = made + (first ? 0 : sum), .bytes_written = sum, .elements = (first ? 2 : 3) * sum / 4, .name = "accumulate unsharded gradient"}), host());
      free_gradients_of(u, w);
    });
  }

  void reduce(std::size_t index, bool first) {
    const Unit& u = stage_.units[index];
    const std::int64_t elements = reduced_elements(u);
    if (elements == 0) return drop_gradients(u);
    const std::int64_t dense = reduced_elements(u, Part::dense), experts = elements - dense;
    const std::int64_t bytes = elements * reduce_bytes_, shard = divided(dense, Part::dense) + divided(experts, Part::experts);
    stage_.call(key(first ? "reduce first" : "reduce", u), Phase::gradient_reduction, &u, [&](plan::BlockWriter& w) {
      // The previous unit's input is freed once its reduction is through; then this one is filled.
      w.record(Stream::data_reduce, Stage::kPersistentSlots - 3);
      w.wait(Stream::compute, Stage::kPersistentSlots - 3);
      w.free(kReduceInput);
      w.alloc(kReduceInput, bytes, Category::communication);
      w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = elements * (sums_in_reduce_format() ? reduce_bytes_ : parameter_bytes_), .bytes_written = bytes, .name = "reduce copy-in"}), host());
      free_gradients_of(u, w);
      if ((defers_ || skips_sync_) && !accumulates_in_place()) w.free(extra(u, kAccumulated), Frame::unit);
      if (gradients_leave()) {  // the last one has been copied down before its bytes are used again
        w.wait(Stream::data_reduce, kLeft);
        w.free(kLeaving);
        w.alloc(kLeaving, shard * stored_bytes(), Category::gradient, Frame::own, Stream::data_reduce);
      } else if (first) {
        w.alloc(extra(u, kShard), shard * stored_bytes(), Category::gradient, Frame::unit, Stream::data_reduce);
      }
      over_groups(w, CollectiveKind::reduce_scatter, {dense * reduce_bytes_, experts * reduce_bytes_}, "gradient reduction", Stream::data_reduce, plan::kAfterCompute);
      if (stage_.sizes.replicate > 1 && !combines_replicas()) sum_over_replicas(w, shard * reduce_bytes_);
      if (offloads_optimizer()) {
        copy_gradients(w, shard * stored_bytes(), shard * stored_bytes(), stage_.sizes.replicate > 1 ? Stream::data_replicate : Stream::data_reduce, first, {});
        if (gradients_leave()) w.record(Stream::to_host, kLeft);
      } else if (!first) {
        w.kernel(builder().kernel({.kind = KernelKind::elementwise, .dtype = DType::fp32, .bytes_read = 2 * shard * stored_bytes(), .bytes_written = shard * stored_bytes(), .name = "accumulate shard"}),
                 host(), Stream::data_reduce);
      }
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
    stage_.call("sum replicas " + std::to_string(bytes), Phase::gradient_reduction, nullptr, [&](plan::BlockWriter& w) { sum_over_replicas(w, bytes); });
  }

  DataParallelKind kind_;
  bool copies_out_ = true;      // what was gathered, into parameters of their own
  bool has_root_ = false;       // what is in no layer is one unit
  bool defers_ = false;         // gradients are reduced once per step and chunk, not per micro-batch
  bool skips_sync_ = false;     // under no_sync: all but the last micro-batch's gradients stay whole on every GPU
  std::int64_t unsummed_ = 0;   // bytes of gradient shards that wait for their sum over replicas
};

}  // namespace

std::unique_ptr<DataParallelWriter> make_sharded(Stage& stage) { return std::make_unique<Sharded>(stage); }

}  // namespace rehearse::strategies
