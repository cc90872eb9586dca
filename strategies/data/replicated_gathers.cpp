// Updated parameters on their way to the other ranks: under the next forward, after the update, through copies, by broadcast.
#include <algorithm>
#include <string>

#include "strategies/data/replicated.h"

namespace rehearse::strategies {

using model::KernelKind;
using plan::Category;
using plan::GroupAxis;
using plan::Phase;
using plan::Stream;

bool Replicated::chains() const {
  if (kind_ != DataParallelKind::distributed_optimizer || bucket_ == INT64_MAX || gathers_under_update() || stage_.sizes.sharing(Part::experts) <= 1) return false;
  for (std::size_t u = 0; u < stage_.units.size(); ++u)
    if (expert_bytes(u) > sent_ahead(u)) return true;
  return false;
}

/// Updated parameters come back while the forward pass of the next step runs, unit by unit.
void Replicated::gather_ahead() {
  chained_ = chains();
  for (std::size_t u = 0; u < stage_.units.size(); ++u) {
    const Tape& tape = *stage_.units[u].tape;
    const bool there = gathers_under_update() && stage_.units[u].chunk == 0;   // or on its way
    const std::int64_t dense = there ? 0 : tape.travel_bytes(stored_bytes(), Part::dense), experts = there ? 0 : !chained_ ? expert_bytes(u) : u == 0 ? sent_ahead(u) : 0;
    const std::uint32_t event = gather_event(u);
    stage_.call("gather parameters " + std::to_string(dense) + " " + std::to_string(experts) + " " + std::to_string(event), Phase::parameter_gather, &stage_.units[u], [&](plan::BlockWriter& w) {
      for (const Part part : kParts) gather(w, part, part == Part::dense ? dense : experts, 0);
      w.record(Stream::data_gather, event, plan::Frame::unit);
    });
  }
}

/// The first chunk has an optimizer of its own, which steps first, and one bucket; its gather is under way while the other chunks are updated.
/// Source: megatron/core/optimizer/__init__.py, get_megatron_optimizer (all_dense_model_chunks); optimizer.py, ChainedOptimizer._step.
void Replicated::update_and_gather(const Share& all) {
  const auto first = [](const Unit& u) { return u.chunk == 0; };
  std::int64_t trained = 0;
  std::array<std::int64_t, 2> bytes{};
  for (const Unit& u : stage_.units) {
    if (!first(u)) continue;
    trained += u.tape->trainable_elements();
    for (const Part part : kParts) bytes[part == Part::experts] += u.tape->travel_bytes(stored_bytes(), part);
  }
  const double ratio = static_cast<double>(trained) / static_cast<double>(std::max<std::int64_t>(1, stage_.trainable_elements()));
  update(scaled(all, ratio, false), first);
  stage_.call("gather the first chunk", Phase::parameter_gather, nullptr, [&](plan::BlockWriter& w) {
    for (const Part part : kParts) gather(w, part, bytes[part == Part::experts], 0);
  });
  update(scaled(all, ratio, true), [&](const Unit& u) { return !first(u); });
}

void Replicated::wait_for_parameters(std::size_t unit) {
  const std::uint32_t event = gather_event(unit);
  stage_.call("wait parameters " + std::to_string(event), Phase::forward, &stage_.units[unit], [&](plan::BlockWriter& w) { w.wait(Stream::compute, event, plan::Frame::unit); });
  const std::int64_t left = expert_bytes(unit) - sent_ahead(unit), next = unit + 1 < stage_.units.size() ? sent_ahead(unit + 1) : 0;
  if (!chained_ || (left <= 0 && next <= 0)) return;
  stage_.call("gather experts " + std::to_string(left) + " then " + std::to_string(next), Phase::parameter_gather, &stage_.units[unit], [&](plan::BlockWriter& w) {
    gather(w, Part::experts, left, plan::kComputeWaits);
    gather(w, Part::experts, next, 0);
  });
}

/// A step's first micro-batch casts the weights of products in fewer than 16 bits; the others find the copies. Weights that are
/// kept in 8 bits need their columns, or after a gather in 16 bits both orientations.
/// Source: Transformer Engine pytorch/module/base.py, get_weight_workspace (update_workspace); Megatron-Core extensions/transformer_engine.py,
/// is_first_microbatch; core/fp8_utils.py, quantize_param_shard, post_all_gather_processing.
void Replicated::cast_weights(const Unit& u) {
  struct Cast {
    std::int64_t tensors = 0, elements = 0, read = 0, written = 0;
    bool maximum = false;
  } all;
  for (const Weight& w : u.tape->weights) {
    if (w.cast_bytes == 0 || w.parameter_elsewhere) continue;
    const bool kept = w.packed_bytes >= 0, narrow = kept && w.travel_bytes == w.elements;   // gathered in 8 bits: rows are there
    if (kept && !w.trainable) continue;   // nothing has changed them
    const std::int64_t read = narrow ? w.elements : 2 * w.elements, written = narrow ? w.cast_bytes - w.elements : w.cast_bytes;
    if (written <= 0) continue;
    all.tensors += w.experts;
    all.elements += w.elements;
    all.read += read, all.written += written;
    all.maximum = all.maximum || (!kept && profile().current_scaling && stage_.strategy.training.precision == Precision::fp8);
  }
  if (all.tensors == 0) return;
  stage_.call("cast weights " + std::to_string(all.read) + " " + std::to_string(all.written) + " " + std::to_string(all.tensors), Phase::forward, nullptr, [&](plan::BlockWriter& w) {
    if (all.maximum) w.kernel(builder().kernel({.kind = KernelKind::reduction, .bytes_read = 2 * all.elements, .bytes_written = 4 * all.tensors, .name = "weight maxima"}), host() * all.tensors);
    w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = all.read, .bytes_written = all.written, .name = "cast weights"}), host() * all.tensors);
  });
}

void Replicated::gather(plan::BlockWriter& w, Part part, std::int64_t bytes, int sync) {
  if (bytes <= 0 || stage_.sizes.sharing(part) <= 1) return;
  w.collective(builder().collective({CollectiveKind::all_gather, axis_of(part), Bytes{bytes}, "parameter gather"}), Stream::data_gather, plan::kAfterCompute | sync, profile().collective_host);
}

/// Every rank's share of the weights is joined into a buffer of its own, which the update of that rank then overwrites, beside a copy
/// of what this rank sends; NCCL gathers into one tensor more and copies from there. Then each piece of each weight is a copy.
/// Source: nanotron distributed.py, all_gather_coalesced; PyTorch ProcessGroupNCCL.cpp, allgather (newLikeFlat, copy_).
void Replicated::gather_through_copies() {
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
void Replicated::gather_by_broadcast() {
  stage_.call("broadcast parameters", Phase::parameter_gather, nullptr, [&](plan::BlockWriter& w) {
    for (const std::int64_t bytes : shares_of_whole_tensors())
      if (bytes > 0)
        w.collective(builder().collective({CollectiveKind::broadcast, axis_of(Part::dense), Bytes{bytes}, "parameter broadcast"}), Stream::data_gather, plan::kAfterCompute | plan::kComputeWaits,
                     profile().collective_host);
  });
}

void Replicated::gather_all() {
  if (profile().gathers_by_broadcast && !trains_experts()) return gather_by_broadcast();
  if (profile().gathers_through_copies && !trains_experts()) return gather_through_copies();
  for (const Part part : kParts) {
    std::int64_t left = 0;
    for (const Unit& u : stage_.units) left += u.tape->travel_bytes(stored_bytes(), part);
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

}  // namespace rehearse::strategies
