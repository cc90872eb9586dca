// DeepSpeed's gradients under ZeRO-1 and ZeRO-2: the buffers that they are put together in, this rank's partition of them, its fp32 copy
// for the update, and the lists of pieces of its first releases; without ZeRO, the fp32 copies of its fp16 step.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "strategies/data/replicated.h"

namespace rehearse::strategies {

using model::KernelKind;
using plan::Category;
using plan::GroupAxis;
using plan::Phase;
using plan::Stream;

/// Without ZeRO, the fp16 step of DeepSpeed and of Megatron begins with fp32 copies of all gradients. DeepSpeed then joins them into
/// one tensor, whose norm is found before they are scaled; Megatron divides them by the loss scale, and the host waits to hear of overflow.
/// Source: deepspeed runtime/fp16/fused_optimizer.py, step: p.grad.to(data_type), _flatten_dense_tensors; Megatron-LM 8aa4619f2b
/// (2021-03) and after, megatron/optimizer/optimizer.py, FP16OptimizerWithFP16Params.step; of its 16-bit buffers too (from 2021-08:
/// main_param.grad = model_param.main_grad.float(), and the buffer stays).
bool Replicated::widens_gradients() const {
  const bool buffers = keeps_main_gradients(), widens = (profile().widens_gradients && !buffers) || (profile().unscales_gradients && (!buffers || main_bytes() == 2));
  return widens && plain() && stage_.strategy.training.precision == Precision::fp16 && !offloads_optimizer();
}

void Replicated::widen_gradients() {
  const std::int64_t narrow = stage_.trainable_bytes(stored_bytes()), wide = stage_.trainable_bytes(4);
  if (profile().unscales_gradients) {
    wide_gradients(true);
    stage_.call("widen and unscale gradients " + std::to_string(wide), Phase::optimizer, nullptr, [&](plan::BlockWriter& w) {
      w.kernel(builder().kernel({.kind = KernelKind::converting, .dtype = DType::fp32, .bytes_read = narrow, .bytes_written = wide, .elements = wide / 2, .name = "widen gradients"}), host());
      w.kernel(builder().kernel({.kind = KernelKind::elementwise, .dtype = DType::fp32, .bytes_read = wide, .bytes_written = wide, .name = "unscale gradients"}), host());
      if (stage_.sizes.tensor * stage_.sizes.pipeline > 1)
        w.collective(builder().collective({CollectiveKind::all_reduce, GroupAxis::model, Bytes{4}, "overflow"}), Stream::data_reduce, plan::kAfterCompute | plan::kComputeWaits, profile().collective_host);
      w.host_sync();
    });
    return;
  }
  stage_.call("widen gradients " + std::to_string(wide), Phase::optimizer, nullptr, [&](plan::BlockWriter& w) {
    constexpr std::uint32_t copies = Stage::kPersistentSlots - 24;
    w.alloc(copies, wide, Category::gradient);
    w.kernel(builder().kernel({.kind = KernelKind::converting, .dtype = DType::fp32, .bytes_read = narrow, .bytes_written = wide, .elements = wide / 2, .name = "widen gradients"}), host());
    w.alloc(kWideGradients, wide, Category::gradient);
    w.kernel(builder().kernel({.kind = KernelKind::elementwise, .dtype = DType::fp32, .bytes_read = wide, .bytes_written = wide, .name = "join gradients"}), host());
    w.free(copies);
  });
  free_gradients();
}

/// Megatron's fp32 copies, a tensor for each weight; here one for each unit's weights together.
void Replicated::wide_gradients(bool made) {
  for (const Unit& u : stage_.units) {
    const std::int64_t bytes = u.tape->trainable_bytes(4);
    if (bytes == 0) continue;
    const auto slot = static_cast<std::uint32_t>(u.tape->weights.size()) + kForeachSlot;   // the update has no temporaries of its own there
    stage_.call((made ? "make wide gradients " : "free wide gradients ") + std::to_string(slot) + " " + std::to_string(bytes), Phase::optimizer, &u, [&](plan::BlockWriter& w) {
      if (made) w.alloc(slot, bytes, Category::gradient, plan::Frame::unit);
      else w.free(slot, plan::Frame::unit);
    });
  }
}

/// The buffers that gradients are put together in: made when a backward begins, after the loss (setup_buckets; under pipeline
/// stages reduce_gradients makes one), as large as the reduction bucket whatever the model has.
/// Source: DeepSpeed runtime/zero/stage_1_and_2.py; stage2.py of 2020: 4.5 times as large.
void Replicated::make_buckets(bool two) {
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
void Replicated::release_buckets() {
  if (!buckets_made_) return;
  buckets_made_ = false;
  reduced_ = {};
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

/// Bytes of the gradients that a bucket made for its reduction is filled with; 0: they are reduced where they are.
std::int64_t Replicated::bucket_source(Part part, std::int64_t bytes) const {
  const std::int64_t made = bytes / reduce_bytes() * (keeps_main_gradients() ? main_bytes() : stored_bytes());
  return stage_.sizes.sharing(part) > 1 && !(keeps_main_gradients() && made == bytes) ? made : 0;
}

void Replicated::copy_bucket(plan::BlockWriter& w, const char* name, std::int64_t elements, std::int64_t from, std::int64_t to) {
  w.kernel(builder().kernel({.kind = from == to ? KernelKind::elementwise : conversion(profile(), from, to), .bytes_read = from, .bytes_written = to, .elements = 2 * elements, .name = name}), host());
}

/// Source: DeepSpeed v0.12.6 runtime/zero/stage_1_and_2.py, allreduce_and_copy, and runtime/engine.py, allreduce_bucket: flatten or cast, average.
void Replicated::fill_bucket(plan::BlockWriter& w, Part part, std::int64_t bytes) {
  const std::int64_t made = bucket_source(part, bytes);
  if (made == 0) return;
  w.alloc(kBucket, bytes, Category::communication);
  copy_bucket(w, "fill bucket", bytes / reduce_bytes(), made, bytes);
  copy_bucket(w, "average bucket", bytes / reduce_bytes(), bytes, bytes);
}

void Replicated::empty_bucket(plan::BlockWriter& w, Part part, std::int64_t bytes) {
  const std::int64_t made = bucket_source(part, bytes);
  if (made == 0) return;
  copy_bucket(w, "take from bucket", bytes / reduce_bytes(), bytes, made);
  w.free(kBucket);
}

/// This rank's part of the 16-bit gradients, one tensor: there from a micro-batch's first gradient on, until the update.
void Replicated::make_partition(bool first) {
  const std::int64_t bytes = part_of(my_share(), false).gradients;
  if (!contiguous() || bytes <= 0 || (first ? partition_made_ : new_partition_)) return;
  (first ? partition_made_ : new_partition_) = true;
  stage_.call(first ? "make gradient partition" : "make new gradient partition", Phase::gradient_reduction, nullptr,
              [&](plan::BlockWriter& w) { w.alloc(first ? kPartition : kNewPartition, bytes, Category::gradient); });
}

/// ZeRO-1 and 2: this rank's 16-bit gradients are joined, copied to fp32 and let go; the update reads the copy.
/// Source: deepspeed runtime/zero/stage_1_and_2.py, step: flatten(averaged_gradients).to(fp32); the same in stage1.py and stage2.py.
bool Replicated::widens_partition() const {
  return profile().widens_gradients && zero() && !keeps_main_gradients() && stored_bytes() == 2 && profile().master_parameters && !offloads_optimizer() && !stage_.strategy.memory.paged_optimizer && my_share().gradients > 0;
}

void Replicated::update_widened() {
  Share mine = my_share();
  const std::int64_t narrow = mine.gradients, wide = mine.elements * 4;
  if (!partition_made_ && !lists()) make_partition(true);   // ZeRO-1: copied as buckets are reduced (copy_grads_in_partition)
  if (!partitions_gradients()) free_gradients();
  const bool made = std::exchange(partition_made_, false);
  stage_.call(std::string("widen partition ") + std::to_string(wide) + (made ? " made" : ""), Phase::optimizer, nullptr, [&](plan::BlockWriter& w) {
    w.alloc(kFlat, narrow, Category::gradient);
    w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = narrow, .bytes_written = narrow, .name = "join gradients"}), host());
    w.alloc(kWideGradients, wide, Category::gradient);
    w.kernel(builder().kernel({.kind = KernelKind::converting, .dtype = DType::fp32, .bytes_read = narrow, .bytes_written = wide, .elements = wide / 2, .name = "widen gradients"}), host());
    w.free(kFlat);
    if (made) w.free(kPartition);
  });
  mine.gradients = wide;
  update(mine);
  stage_.call("free wide gradients", Phase::optimizer, nullptr, [](plan::BlockWriter& w) { w.free(kWideGradients); });
}

/// All gradients are copied into the pieces that ranks own, interval by interval of the bucket's size; each interval is
/// reduce-scattered from a copy that lies side by side (ProcessGroupNCCL, lists) and averaged. Until 2020-11 the intervals are then
/// joined, then all of them, and a rank's own gradients copied back. Everything stays until the end.
/// Source: DeepSpeed runtime/zero/stage1.py, reduce_scatter_gradients; 08c96a1bc (2020-11-19).
void Replicated::scatter_lists() {
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

/// Source: DeepSpeed stage_1_and_2.py, reduce_independent_p_g_buckets_and_remove_grads.
void Replicated::into_bucket(const Unit& u, bool first) {
  const std::int64_t bytes = u.tape->trainable_bytes(stored_bytes());
  if (pattern_of(u).find('y') == std::string::npos) return;
  make_partition(first);
  stage_.call("gradients into bucket " + std::to_string(bytes) + " " + pattern_of(u), Phase::gradient_reduction, &u, [&](plan::BlockWriter& w) {
    w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = bytes, .bytes_written = bytes, .name = "copy to bucket"}), host());
    free_gradients_of(u, w);
  });
}

}  // namespace rehearse::strategies
