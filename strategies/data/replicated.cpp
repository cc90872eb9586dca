#include "strategies/data/replicated.h"

#include <string>
#include <utility>

#include "strategies/data/families.h"

namespace rehearse::strategies {

using model::KernelKind;
using plan::Category;
using plan::GroupAxis;
using plan::Phase;
using plan::Stream;

/// Bytes that are reduced at once under backward where neither job nor framework says: what XLA combines, or
/// DistributedDataParallel's bucket_cap_mb (torch/nn/parallel/distributed.py, _DEFAULT_BUCKET_CAP_MB).
std::int64_t Replicated::ddp_bucket() const {
  constexpr std::int64_t kPyTorchBucket = 25 << 20;
  return profile().replica_bucket > Bytes{0} ? profile().replica_bucket.value : kPyTorchBucket;
}

Replicated::Replicated(Stage& stage) : DataParallelWriter(stage), kind_(stage.strategy.data_parallel.kind) {
  const auto& dp = stage.strategy.data_parallel;
  overlap_reduce_ = dp.overlap_gradient_reduce.value_or(profile().overlap_gradient_reduce);
  overlap_gather_ = dp.overlap_parameter_gather.value_or(profile().overlap_parameter_gather) && shards_states();
  reduce_dtype_ = dp.reduce_dtype.value_or(profile().reduce);
  bucket_ = dp.bucket ? dp.bucket->value : std::max(profile().bucket_elements, profile().bucket_elements_per_rank * stage_.sizes.data) * reduce_bytes();
  if (bucket_ <= 0) bucket_ = kind_ == DataParallelKind::ddp && overlap_reduce_ && !profile().ddp_bucket_copies ? ddp_bucket() : INT64_MAX;
  if (lists()) overlap_reduce_ = false;
}

void Replicated::setup() {
  const bool one_buffer = profile().parameter_buffer && kind_ == DataParallelKind::distributed_optimizer;
  if (one_buffer) place_apart(true);
  // What was loaded is copied into one tensor: places of a weight each are left to the allocator.
  UnitTensors loaded;
  if (zero() && profile().flattens_on_device && stage_.strategy.tuning.kind == TuningKind::full && stage_.bytes_on_host == 0) {
    std::vector<std::vector<std::int64_t>> bytes(stage_.units.size());
    for (std::size_t u = 0; u < bytes.size(); ++u)
      for (const Weight& weight : stage_.units[u].tape->weights)
        if (!weight.parameter_elsewhere) bytes[u].push_back(weight.elements * stored_bytes());
    loaded = tensors_of(std::move(bytes));
  }
  for (const Unit& u : stage_.units) make("loaded parameters", loaded, u, Phase::setup, Category::parameter);
  persistent("parameters", stage_.parameter_bytes(stored_bytes()) - stage_.bytes_on_host, Category::parameter);
  for (const Unit& u : stage_.units) let_go("loaded parameters", loaded, u, Phase::setup);
  if (keeps_main_gradients()) persistent("gradients", stage_.trainable_bytes(main_bytes()), Category::gradient);
  if (zeroes_narrow()) persistent("gradients of a micro-batch", stage_.trainable_bytes(gradient_element_bytes()), Category::gradient);
  if (one_buffer) place_apart(false);
  std::int64_t casts = 0;
  for (const Unit& u : stage_.units) casts += u.tape->cast_bytes();
  if (casts > 0) persistent("weights in fewer bits", casts, Category::parameter);
  const Share stays = part_of(my_share(), false);
  if (partitions_gradients() && !contiguous()) persistent("gradient partition", stays.gradients, Category::gradient);
  keep_states(stays);
  if (profile().gathers_in_gradients && kind_ == DataParallelKind::distributed_optimizer) view_gradients();
  stage_.rank_class.unified = paged_bytes();
  keep_on_host(my_share());
  // stage_1_and_2.py, temp_grad_buffer_for_gpu_offload: what the host has of earlier micro-batches comes back into it.
  if (copies_under_backward()) persistent("offload's gradient buffer", largest_weight() * stored_bytes(), Category::communication);
  if (profile().ddp_bucket_copies && stage_.sizes.data > 1 && !reduces_whole()) persistent("gradient bucket views", stage_.trainable_bytes(2), Category::gradient);
  const std::int64_t reduced = stage_.trainable_bytes(reduce_bytes());
  if (reduces_copies() && reduces()) persistent("gradient buckets", reduced, Category::communication);
  if (zero() && !contiguous() && !lists() && !flattens_at_once() && !buckets_at_reduction() && reduces()) persistent("reduce bucket", std::min(bucket_, reduced) * (overlap_reduce_ ? 2 : 1), Category::communication);
  if (profile().dummy_weight_gradients) dummies();
}

/// torch.tensor(storage) makes a tensor of the storage's size before it takes the storage (torch/csrc/utils/tensor_new.cpp).
void Replicated::view_gradients() {
  const std::int64_t bytes = stage_.trainable_bytes(main_bytes());
  stage_.call("view gradients " + std::to_string(bytes), Phase::setup, nullptr, [&](plan::BlockWriter& w) {
    const std::uint32_t passing = Stage::kPersistentSlots - 10;
    w.alloc(passing, bytes, Category::temporary);
    w.free(passing);
  });
}

WeightGradient Replicated::gradient_mode(bool first) const {
  if (zeroes_narrow()) return WeightGradient::added_main;
  if (accumulates_later()) return WeightGradient::first;
  if (keeps_main_gradients()) return profile().fused_gradient_accumulation ? WeightGradient::fused_main : WeightGradient::added_main;
  return first || partitions_gradients() ? WeightGradient::first : WeightGradient::accumulate;
}

void Replicated::begin_step() {
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

void Replicated::before_forward(std::size_t unit, int micro_batch) {
  release_buckets();
  if (micro_batch != 0) return;
  if (gathers_ahead()) wait_for_parameters(unit);
  cast_weights(stage_.units[unit]);
}

void Replicated::before_backward(std::size_t, int) {
  if (stage_.sizes.pipeline == 1 && !profile().buckets_late) make_buckets(overlap_reduce_);
}

void Replicated::before_weight_gradients(std::size_t unit) {
  if (zeroes_narrow()) zero_narrow(stage_.units[unit]);
  if (std::exchange(narrow_held_, false)) free_gradients(Phase::backward);
}

void Replicated::after_backward(std::size_t unit, int, bool first, bool last) {
  if (stage_.strategy.memory.optimizer_in_backward) return update_in_backward(stage_.units[unit], stored_bytes());
  if (stage_.sizes.pipeline == 1 && profile().buckets_late) make_buckets(overlap_reduce_);
  if (partitions_gradients()) into_bucket(stage_.units[unit], first);
  if (accumulates_later() && begins_chunk(unit)) accumulate_chunk(unit);
  first_ = first, last_ = last;
  if (!reduces()) {
    const std::int64_t bytes = stage_.units[unit].tape->trainable_bytes(stored_bytes());
    if (copies_under_backward() && (last || kind_ == DataParallelKind::zero2) && bytes > 0)
      stage_.call("gradients to host " + std::to_string(bytes) + (first ? " first" : "") + (last ? " last" : ""), Phase::gradient_reduction, nullptr,
                  [&](plan::BlockWriter& w) {
                    const std::int64_t wide = stage_.units[unit].tape->trainable_bytes(4);
                    if (last) inspect_gradients(w, wide / 4, largest_weight(stage_.units[unit]), Stream::compute);
                    copy_gradients(w, bytes, last ? wide : bytes, Stream::compute, first || kind_ != DataParallelKind::zero2, {.holds_host = last});
                  });
    return;
  }
  // ZeRO-2 partitions gradients, so it must reduce every micro-batch; the others only the last, unless they are told wrongly.
  const bool reduce_now = last || kind_ == DataParallelKind::zero2 || profile().reduces_each_pass;
  if (!reduce_now) return;
  for (const Part part : kParts) pending(part) += stage_.units[unit].tape->trainable_bytes(reduce_bytes(), part);
  if (!reduces_in_backward()) return;
  if (by_layer()) {
    if (stage_.sizes.pipeline > 1 || stage_.units[unit].layer <= 0) return;
    for (const Part part : kParts) {
      const std::int64_t bytes = stage_.units[unit].tape->trainable_bytes(reduce_bytes(), part);
      reduce(part, bytes);
      pending(part) -= bytes;
    }
    return;
  }
  // Megatron: only the first pipeline rank's first chunk is bucketed (facts: schedules.md section 5).
  const bool first_stage = stage_.sizes.stage_before < 0 && stage_.units[unit].chunk == 0 && !stage_.strategy.data_parallel.gather_under_update;
  if (kind_ == DataParallelKind::distributed_optimizer && stage_.sizes.pipeline > 1 && !first_stage) return;
  for (const Part part : kParts)
    while (pending(part) >= bucket_) {
      reduce(part, bucket_);
      pending(part) -= bucket_;
    }
  if (kind_ == DataParallelKind::zero2 && unit == 0) reduce_pending();   // independent_gradient_partition_epilogue
}

void Replicated::end_chunk(std::size_t, std::size_t) {
  const bool own_buckets = kind_ == DataParallelKind::distributed_optimizer || kind_ == DataParallelKind::ddp;
  if (reduces() && stage_.sizes.pipeline > 1 && overlap_reduce_ && own_buckets && !reduces_whole()) reduce_pending();
}

void Replicated::end_step() {
  if (stage_.strategy.memory.optimizer_in_backward) return free_tied_gradients();
  if (!evaluates() && stage_.sizes.pipeline > 1) make_buckets(false);
  if (flattens_gradients()) {
    reduce_flat();
  } else if (reduces()) {
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
  Share updated = my_share();
  if (widens_gradients()) {
    widen_gradients();
    updated.gradients = stage_.trainable_bytes(4);
  }
  if (reduces_whole()) clip_whole();
  else clip(updated, shards_states(), norm_in_doubles() ? std::min(largest_weight(), updated.elements) : 0);
  if (offloads_optimizer()) {
    const Share host_part = part_of(my_share(), true);
    if (!copies_under_backward())
      stage_.call("gradients to host at end", Phase::gradient_reduction, nullptr, [&](plan::BlockWriter& w) { copy_gradients(w, my_share().gradients, my_share().gradients, Stream::compute, true, {}); });
    update(part_of(my_share(), false));
    update_on_host({host_part}, copies_under_backward() ? zero_return() : Return::stored);
  } else if (stage_.strategy.memory.paged_optimizer) {
    update_paged(keeps_main_gradients() ? main_bytes() : stored_bytes());
  } else if (widens_partition()) {
    update_widened();
  } else if (gathers_under_update()) {
    update_and_gather(updated);
  } else {
    update(updated);
  }
  if (std::exchange(partition_made_, false)) stage_.call("free gradient partition", Phase::optimizer, nullptr, [](plan::BlockWriter& w) { w.free(kPartition); });
  if (widens_partition()) {
    // what there was has gone into the fp32 copy
  } else if (widens_gradients() && profile().unscales_gradients) {
    wide_gradients(false);
    if (!keeps_main_gradients()) free_gradients();
  } else if (widens_gradients())
    stage_.call("free wide gradients", Phase::optimizer, nullptr, [](plan::BlockWriter& w) { w.free(kWideGradients); });
  else if (!keeps_main_gradients() && !partitions_gradients()) free_gradients();
  if (shards_states() && gathers() && !overlap_gather_) gather_all();
  if (std::exchange(narrow_held_, false)) free_gradients(Phase::optimizer);   // in truth when the next step's first backward begins
}

void Replicated::clip_whole() {
  Share all = my_share();
  all.gradients = stage_.trainable_bytes(main_bytes());
  clip(all, false);
  // A norm and a scaling for each weight, of which clip() has one of each.
  stage_.call("clip weight by weight", Phase::optimizer, nullptr, [&](plan::BlockWriter& w) { w.host(host() * (2 * own_weights())); });
}

std::int64_t Replicated::own_weights() const {
  std::int64_t weights = 0;
  for (const Unit& u : stage_.units)
    for (const Weight& weight : u.tape->weights) weights += weight.trainable && !weight.parameter_elsewhere;
  return weights;
}

/// Source: deepspeedai/DeepSpeed at v0.12.6, runtime/bf16_optimizer.py, clear_lp_grads: param.grad.zero_(), a kernel each.
void Replicated::zero_narrow(const Unit& unit) {
  if (unit.tape->trainable_elements() == 0) return;
  stage_.call("zero gradients of a micro-batch " + std::to_string(unit.tape->trainable_elements()) + pattern_of(unit), Phase::backward, &unit, [&](plan::BlockWriter& w) {
    for (const Weight& weight : unit.tape->weights)
      if (weight.trainable && !weight.gradient_elsewhere)
        w.kernel(builder().kernel({.kind = KernelKind::memset, .bytes_written = weight.elements * gradient_element_bytes(), .name = "zero gradient"}), host());
  });
}

void Replicated::accumulate_chunk(std::size_t first) {
  for (std::size_t u = first; u < stage_.units.size() && stage_.units[u].chunk == stage_.units[first].chunk; ++u) {
    const Unit& unit = stage_.units[u];
    stage_.call("accumulate gradients " + std::to_string(unit.tape->trainable_elements()) + pattern_of(unit), Phase::backward, &unit, [&](plan::BlockWriter& w) {
      for (const Weight& weight : unit.tape->weights) {
        if (!weight.trainable || weight.gradient_elsewhere) continue;
        const std::int64_t main = weight.elements * main_bytes(), made = weight.elements * gradient_element_bytes();
        constexpr std::uint32_t wide = Stage::kPersistentSlots - 20;
        const bool widens = profile().widens_before_adding && made < main;
        if (widens) {
          w.alloc(wide, main, Category::temporary);
          w.kernel(builder().kernel({.kind = KernelKind::converting, .bytes_read = made, .bytes_written = main, .elements = 2 * weight.elements, .name = "widen gradient"}), host());
        }
        w.kernel(builder().kernel({.kind = widens || made == main ? KernelKind::elementwise : KernelKind::converting, .bytes_read = (widens ? main : made) + main, .bytes_written = main, .elements = 3 * weight.elements, .name = "gradient accumulate"}), host());
        if (widens) w.free(wide);
      }
      if (!zeroes_narrow() && !holds_narrow()) free_gradients_of(unit, w);
    });
  }
  narrow_held_ = holds_narrow();
}

/// Transformer Engine keeps one 16-bit dummy gradient per distinct weight shape, experts' of grouped products too, which are a tensor each.
/// Source: Transformer Engine 2.11, pytorch/module/base.py get_dummy_wgrad; before 2.10 experts had one each, made and freed in backward.
void Replicated::dummies() {
  std::vector<std::int64_t> shapes;
  for (const Unit& u : stage_.units)
    for (const Weight& w : u.tape->weights)
      if (w.matrix && w.trainable && std::find(shapes.begin(), shapes.end(), w.elements / w.experts) == shapes.end()) shapes.push_back(w.elements / w.experts);
  for (std::int64_t elements : shapes) persistent("dummy weight gradient", elements * 2, Category::temporary);
}

/// Overflow, then the norm: of each parameter an fp32 copy, a sum and a wait of the host. ZeRO-1 looks at all of them, ZeRO-2 at its own;
/// without ZeRO the norm is that of the joined copies.
/// Source: DeepSpeed of 2020-21, runtime/utils.py, CheckOverflow, get_grad_norm; zero/stage2.py, get_grad_norm_direct; fp16/fused_optimizer.py, step.
void Replicated::check_by_parameter() {
  const bool sharded = kind_ == DataParallelKind::zero1 || kind_ == DataParallelKind::zero2;
  if (!profile().checks_by_parameter || !(sharded || widens_gradients()) || offloads_optimizer()) return;
  std::int64_t weights = 0, elements = 0;
  for (const Unit& u : stage_.units)
    for (const Weight& w : u.tape->weights)
      if (w.trainable && !w.gradient_elsewhere) ++weights, elements += w.elements;
  if (weights == 0) return;
  const std::int64_t each = elements / weights, mine = kind_ == DataParallelKind::zero2 ? (weights + stage_.sizes.shard - 1) / stage_.sizes.shard : weights;
  for (std::int64_t i = 0; i < (sharded ? 2 : 1) * mine; ++i)
    stage_.call("check parameter " + std::to_string(each), Phase::optimizer, nullptr, [&](plan::BlockWriter& w) {
      constexpr std::uint32_t wide = Stage::kPersistentSlots - 20;
      w.alloc(wide, each * 4, Category::temporary);
      w.kernel(builder().kernel({.kind = KernelKind::converting, .dtype = DType::fp32, .bytes_read = each * stored_bytes(), .bytes_written = each * 4, .elements = 2 * each, .name = "widen gradient"}), host());
      w.kernel(builder().kernel({.kind = KernelKind::reduction, .dtype = DType::fp32, .bytes_read = each * 4, .bytes_written = 4, .name = "check gradient"}), host());
      w.free(wide);
      w.host_sync();
    });
}

/// How a bucket is summed. ZeRO-2's, which belongs to one rank or two, went to its owner until November 2023 (stage2.py of 2020, average_tensor: dist.reduce;
/// stage_1_and_2.py until DeepSpeed 2afa1c7f2, use_multi_rank_bucket_allreduce); a bucket of two owners is one reduction here.
CollectiveKind Replicated::reduction() const {
  if (kind_ == DataParallelKind::distributed_optimizer && !reduces_whole()) return CollectiveKind::reduce_scatter;
  return kind_ == DataParallelKind::zero2 && profile().reduces_to_owner ? CollectiveKind::reduce : CollectiveKind::all_reduce;
}

/// Where a bucket has pieces of several owners, they are flattened into one tensor that is all-reduced, and each takes its own back. What is of one owner alone is
/// one tensor already. `from`: bytes of this micro-batch that went before. Source: DeepSpeed runtime/zero/stage_1_and_2.py, average_tensor, allreduce_bucket, since
/// 2afa1c7f2 (2023-11, 0.12.4).
bool Replicated::flattens_bucket(Part part, std::int64_t from, std::int64_t bytes) const {
  const std::int64_t ranks = stage_.sizes.sharing(part);
  if (!contiguous() || profile().reduces_to_owner || ranks == 1) return false;
  const std::int64_t owned = (stage_.trainable_bytes(reduce_bytes(), part) + ranks - 1) / ranks;
  return owned > 0 && (from + bytes - 1) / owned > from / owned;
}

void Replicated::reduce(Part part, std::int64_t bytes) {
  if (bytes <= 0) return;
  const bool scatter = kind_ == DataParallelKind::distributed_optimizer && !reduces_whole(), experts = part == Part::experts;
  std::int64_t& gone = reduced_[experts];
  const bool first = first_ || kind_ != DataParallelKind::zero2, flattens = flattens_bucket(part, gone, bytes);
  gone += bytes;
  stage_.call((experts ? "reduce expert gradients " : "reduce gradients ") + std::to_string(bytes) + (flattens ? " flattened" : "") + (copies_under_backward() && first ? " first" : "") + (copies_under_backward() && last_ ? " last" : ""), Phase::gradient_reduction, nullptr, [&](plan::BlockWriter& w) {
    if (reduces_copies()) w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = bytes, .bytes_written = bytes, .name = "copy to bucket"}), host());
    const bool at_once = profile().reduces_over_all && !scatter && !experts;  // over shards and replicas
    auto copy_on_stream = [&](const char* name) {
      w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = bytes, .bytes_written = bytes, .name = name}), host(), Stream::data_reduce);
    };
    constexpr std::uint32_t flat = Stage::kPersistentSlots - 20, wide = Stage::kPersistentSlots - 21;
    const bool makes_bucket = flattens_at_once() && at_once, widens = makes_bucket && reduce_bytes() > gradient_element_bytes();
    if (at_once) {
      w.record(Stream::compute, Stage::kPersistentSlots - 6);
      w.wait(Stream::data_reduce, Stage::kPersistentSlots - 6);
      if (makes_bucket) w.alloc(flat, bytes / reduce_bytes() * gradient_element_bytes(), Category::communication);
      if (widens) w.alloc(wide, bytes, Category::communication);
      copy_on_stream("flatten bucket");
    }
    if (buckets_at_reduction()) fill_bucket(w, part, bytes);
    if (zero() && overlap_reduce_) behind_buckets(w);
    const Stream pieces = overlap_reduce_ ? Stream::data_reduce : Stream::compute;
    const auto copy_pieces = [&](const char* name, std::int64_t copied) {
      w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = copied, .bytes_written = copied, .name = name}), host(), pieces);
    };
    if (flattens) {
      w.record(Stream::compute, Stage::kPersistentSlots - 6);
      w.wait(pieces, Stage::kPersistentSlots - 6);
      copy_pieces("average bucket", bytes);
      if (partitions_gradients()) w.alloc(flat, bytes, Category::communication, plan::Frame::own, pieces);   // ZeRO-1's gradients become views of the bucket first, and make room
      copy_pieces("flatten bucket", bytes);
    }
    if (at_once ? stage_.sizes.data > 1 : stage_.sizes.sharing(part) > 1)
      w.collective(builder().collective({reduction(), at_once ? GroupAxis::data_context : axis_of(part), Bytes{bytes}, "gradient reduction"}),
                   Stream::data_reduce, at_once ? 0 : plan::kAfterCompute | (overlap_reduce_ ? 0 : plan::kComputeWaits), profile().collective_host);
    if (buckets_at_reduction()) empty_bucket(w, part, bytes);
    if (flattens) {
      copy_pieces("own pieces back", bytes / stage_.sizes.sharing(part));
      if (partitions_gradients()) w.free(flat);
    }
    if (at_once) copy_on_stream("unflatten bucket");
    if (widens) w.free(wide);
    if (makes_bucket) w.free(flat);
    if (stage_.sizes.replicate > 1 && !experts && !at_once) {
      w.record(Stream::data_reduce, Stage::kPersistentSlots - 3);
      w.wait(Stream::data_replicate, Stage::kPersistentSlots - 3);
      w.collective(builder().collective({CollectiveKind::all_reduce, GroupAxis::data_replicate, Bytes{scatter ? bytes / stage_.sizes.shard : bytes}, "replica reduction"}),
                   Stream::data_replicate, plan::kAfterCompute, profile().collective_host);
    }
    if (copies_under_backward()) hand_down(w, part, bytes / reduce_bytes(), first);
    if (zero() && overlap_reduce_ && profile().bucket_wait == BucketWait::own) compute_waits_for_buckets(w);
  });
}

/// With overlap_comm, a bucket that is full waits for the one before it. Source: DeepSpeed runtime/zero/stage_1_and_2.py, average_tensor: torch.cuda.synchronize
/// until 97deaaec5 (2023-01-09, 0.8.0), since a41729f6a (2024-06-10, 0.14.3) current_stream().wait_stream(reduction_stream).
void Replicated::behind_buckets(plan::BlockWriter& w) {
  if (profile().synchronises_buckets) w.host_sync();
  if (profile().bucket_wait != BucketWait::none) compute_waits_for_buckets(w);
}

void Replicated::compute_waits_for_buckets(plan::BlockWriter& w) {
  constexpr std::uint32_t kBucketEvent = Stage::kPersistentSlots - 40;
  for (const Stream stream : {Stream::data_reduce, Stream::data_replicate, Stream::to_host}) {   // copies down are on the stream of reductions there
    w.record(stream, kBucketEvent);
    w.wait(Stream::compute, kBucketEvent);
  }
}

/// ZeRO-1 and 2 cut the flat parameters into as many pieces as there are ranks, one after the other, so a reduced bucket belongs to one rank or
/// two. They look at it and copy it down in the stream that reduces it (compute's own without overlap), while the others go on to the next bucket's
/// reduction and wait there: ranks copy in turn, each as fast as it can alone.
/// Source: DeepSpeed runtime/zero/stage_1_and_2.py (stage2.py of 2020), get_partition_info, reduce_ipg_grads, copy_grads_in_partition.
void Replicated::hand_down(plan::BlockWriter& w, Part part, std::int64_t elements, bool first) {
  const int ranks = static_cast<int>(stage_.sizes.sharing(part));
  const std::int64_t mine = elements / ranks;
  if (last_) inspect_gradients(w, elements, largest_weight(), Stream::data_reduce);
  copy_gradients(w, mine * stored_bytes(), mine * (last_ ? 4 : stored_bytes()), stage_.sizes.replicate > 1 && part != Part::experts ? Stream::data_replicate : Stream::data_reduce, first, {ranks, !overlap_reduce_, last_});
}

/// What is left goes in buckets; a chunk of Megatron's that has none goes as one, as does what belongs to the first layer's bucket.
void Replicated::reduce_pending() {
  const bool whole = reduces_whole() || by_layer() || (kind_ == DataParallelKind::distributed_optimizer && stage_.sizes.pipeline > 1 && overlap_reduce_);
  const std::int64_t most = whole ? INT64_MAX : bucket_;
  for (const Part part : kParts)
    for (std::int64_t& left = pending(part); left > 0; left -= std::min(left, most)) reduce(part, std::min(left, most));
}

/// Source: DeepSpeed runtime/zero/stage_1_and_2.py, get_grad_norm_direct: g.data.double(); offloaded gradients are looked at as they go down (hand_down).
bool Replicated::norm_in_doubles() const { return contiguous() && widens_partition() && !profile().checks_by_parameter; }

/// All 16-bit gradients as one tensor: flattened, averaged, summed, waited for, copied back.
/// Source: Megatron-LM 8aa4619f2b (2021-03), megatron/model/distributed.py, allreduce_params; DeepSpeed 7d4d742bf (2020-11), runtime/engine.py,
/// allreduce_and_copy, whose step waits for its check of overflow.
void Replicated::reduce_flat() {
  const std::int64_t bytes = stage_.trainable_bytes(stored_bytes());
  if (bytes <= 0) return;
  stage_.call("reduce flat gradients " + std::to_string(bytes), Phase::gradient_reduction, nullptr, [&](plan::BlockWriter& w) {
    constexpr std::uint32_t flat = Stage::kPersistentSlots - 20;
    const auto pass = [&](const char* name) { w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = bytes, .bytes_written = bytes, .name = name}), host()); };
    w.alloc(flat, bytes, Category::communication);
    pass("flatten gradients");
    pass("average gradients");
    if (reduces())
      w.collective(builder().collective({CollectiveKind::all_reduce, axis_of(Part::dense), Bytes{bytes}, "gradient reduction"}), Stream::data_reduce, plan::kAfterCompute | plan::kComputeWaits, profile().collective_host);
    w.host_sync();
    pass("copy gradients back");
    w.free(flat);
  });
}

std::unique_ptr<DataParallelWriter> make_replicated(Stage& stage) { return std::make_unique<Replicated>(stage); }

}  // namespace rehearse::strategies
