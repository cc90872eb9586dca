// Gradients of ZeRO-3: put into a bucket as they are made and reduced from it, all of them in one reduce-scatter, or one by
// one in quantised all-to-alls (qgZ).
#include <algorithm>

#include "strategies/data/zero3.h"

namespace rehearse::strategies {

using model::KernelKind;
using plan::Category;
using plan::Frame;
using plan::GroupAxis;
using plan::Phase;
using plan::Stream;

void Zero3::into_bucket(std::size_t unit, int weight, const Weight& w) {
  const std::int64_t bytes = w.elements * (w.wide_bytes > 0 ? w.wide_bytes : parameter_bytes_);
  const auto slot = static_cast<std::uint32_t>(weight);
  const bool fits = in_bucket_ + w.elements <= bucket_;
  elements_[w.expert] += w.elements;
  in_bucket_ += w.elements;
  ++gradients_;
  if (quantises_gradients_) tensors_.push_back({w.elements, w.columns, w.matrix});
  const Unit& u = stage_.units[unit];
  stage_.call((fits ? "gradient into bucket " : "gradient beside bucket ") + std::string(w.expert ? "of experts " : "") + std::to_string(slot) + " " + std::to_string(bytes), Phase::gradient_reduction, &u, [&](plan::BlockWriter& b) {
    b.host(parameters_[index_of(unit, weight)].tensors * (profile().bucket_host + stage_.sizes.sharing(w.expert ? Part::experts : Part::dense) * profile().gradient_part_host));
    b.record(Stream::compute, kMade);
    b.wait(Stream::data_reduce, kMade);
    if (!fits) return;
    elementwise(b, "copy to bucket", bytes, w.elements * bucket_element_bytes(), Stream::data_reduce);
    b.free(slot, Frame::unit);
  });
  if (!fits) waiting_.push_back({unit, weight});
}

/// __reduce_and_partition_ipg_grads.
void Zero3::reduce() {
  if (in_bucket_ == 0) return;
  const bool first = micro_batch_ == 0, last = micro_batch_ + 1 == stage_.strategy.micro_batches();
  hold_host();
  if (quantises_gradients_) reduce_tensors(first, last);
  else
    for (const Part part : kParts) reduce_bucket(part, first, last);
  reductions_issued();
  for (const Waiting& g : waiting_) {
    const auto slot = static_cast<std::uint32_t>(g.weight);
    stage_.call("free gradient " + std::to_string(slot), Phase::gradient_reduction, &stage_.units[g.unit], [&](plan::BlockWriter& w) {
      w.free(slot, Frame::unit);
    });
  }
  waiting_.clear();
  tensors_.clear();
  elements_ = {};
  in_bucket_ = 0;
  gradients_ = 0;
}

/// The host goes no further ahead than a few reductions.
void Zero3::hold_host() {
  if (reductions_ <= kMostReductions) return;
  const std::uint32_t oldest = kReduced + static_cast<std::uint32_t>(reductions_ % (kMostReductions + 1));
  append("wait for a reduction " + std::to_string(oldest), Phase::gradient_reduction, stage_.persistent, plan::kNoFrame, [&](plan::BlockWriter& w) { w.host_wait(oldest); });
}

void Zero3::reductions_issued() {
  const std::uint32_t event = kReduced + static_cast<std::uint32_t>(reductions_++ % (kMostReductions + 1));
  append("reduction issued " + std::to_string(event), Phase::gradient_reduction, stage_.persistent, plan::kNoFrame, [&](plan::BlockWriter& w) {
    w.record(Stream::data_reduce, event);
    if (overlaps_) return;
    w.wait(Stream::compute, event);   // stage3.py, reduce_and_partition_stream: compute's own without overlap_comm
    if (!offloads_optimizer()) return;
    w.record(Stream::to_host, kCopiedDown);
    w.wait(Stream::compute, kCopiedDown);
  });
}

/// reduce_scatter_coalesced: several gradients are interleaved by rank first.
void Zero3::reduce_bucket(Part part, bool first, bool last) {
  const std::int64_t elements = elements_[part == Part::experts];
  if (elements == 0) return;
  const bool one = gradients_ == 1 && elements % stage_.sizes.sharing(part) == 0 && reduce_bytes_ == bucket_element_bytes();
  const std::int64_t bytes = elements * reduce_bytes_, made = elements * bucket_element_bytes(), shard = divided(elements, part) * stored_bytes();
  const std::string name = std::string(part == Part::experts ? "reduce experts' bucket " : "reduce bucket ") + std::to_string(elements) + (profile().list_part_host > Duration{} ? " of " + std::to_string(gradients_) : "") + (one ? " alone" : "") + (first ? " first" : "") + (last ? " last" : "") + to_disk_text(shard / stored_bytes(), last);
  append(name, Phase::gradient_reduction, stage_.persistent, plan::kNoFrame, [&](plan::BlockWriter& w) {
    w.host(profile().reduction_host);
    if (!one) {
      w.alloc(kInterleaved, bytes, Category::communication, Frame::own, pool_of(Stream::data_reduce));
      elementwise(w, "interleave gradients", made, bytes, Stream::data_reduce);
    }
    elementwise(w, "average gradients", bytes, bytes, Stream::data_reduce);
    copy_lists(w, bytes, part, gradients_, Stream::data_reduce);
    over_groups(w, CollectiveKind::reduce_scatter, part == Part::experts ? std::array<std::int64_t, 2>{0, bytes} : std::array<std::int64_t, 2>{bytes, 0}, "gradient reduction", Stream::data_reduce, 0);
    // Replicas of shards (MiCS) sum theirs when the step's last micro-batch has been reduced (mics.py, allreduce_mics_shard_grads).
    const bool replicas = last && stage_.sizes.sharing(part) > 1 && stage_.sizes.replicate > 1 && part == Part::dense;
    if (replicas) sum_over_replicas(w, shard / stored_bytes() * reduce_bytes_);
    if (offloads_optimizer()) copy_sums(w, shard, replicas ? Stream::data_replicate : Stream::data_reduce, first, last);
    else elementwise(w, "gradient partition", first ? shard : 2 * shard, shard, Stream::data_reduce);
    if (!one) w.free(kInterleaved);
  });
  if (last) copied_down_ += shard / stored_bytes();
}

/// The host keeps each micro-batch's sum, the last one's as well, and gives it back before it is used; that goes down once more, in
/// fp32 (stage3.py, partition_grads: grad_buffer.copy_, grad_buffer.to, fp32_grad_tensor.copy_(grad_buffer.float())). In 2021 only what adds
/// up was kept (async_accumulate_grad_in_cpu_via_gpu, where there were several micro-batches).
void Zero3::copy_sums(plan::BlockWriter& w, std::int64_t shard, Stream after, bool first, bool last) {
  const bool keeps = profile().keeps_gradient_sums;
  const std::int64_t sums = keeps || !last ? shard : 0, wide = last ? shard / stored_bytes() * 4 : 0;
  const std::int64_t disk = 4 * to_disk(shard / stored_bytes(), last);
  if (disk == 0 || sums + wide > disk) copy_gradients(w, shard, sums + wide - disk, after, first && !keeps, {});
  if (disk > 0) copy_gradients(w, 0, disk, after, true, {}, true);
}

/// Of the gradients that are copied down next, those in a buffer that gets full, and so on its way to NVMe, before the update.
std::int64_t Zero3::to_disk(std::int64_t elements, bool last) const { return last ? std::clamp<std::int64_t>(written_under_backward_ - copied_down_, 0, elements) : 0; }

std::string Zero3::to_disk_text(std::int64_t elements, bool last) const {
  const std::int64_t disk = to_disk(elements, last);
  return disk > 0 ? " to disk " + std::to_string(disk) : "";
}

std::int64_t Zero3::shards_of_tensors() const {
  std::int64_t elements = 0;
  for (const Tensor& t : tensors_) elements += divided(t.elements, Part::dense);
  return elements;
}

/// all_to_all_quant_reduce takes the bucket's tensors one by one: matrices that the ranks divide evenly are quantised.
void Zero3::reduce_tensors(bool first, bool last) {
  std::string name = std::string("reduce tensors") + (first ? " first" : "") + (last ? " last" : "") + to_disk_text(shards_of_tensors(), last);
  for (const Tensor& t : tensors_) name += " " + std::to_string(t.elements) + "/" + std::to_string(t.matrix ? std::max<std::int64_t>(1, t.columns) : t.columns);
  append(name, Phase::gradient_reduction, stage_.persistent, plan::kNoFrame, [&](plan::BlockWriter& w) {
    std::int64_t shards = 0;
    for (const Tensor& t : tensors_) {
      const bool matrix = t.matrix || t.columns > 0;
      if (matrix && t.elements % (2LL * stage_.sizes.shard) == 0) reduce_quantised(w, t);
      else reduce_alone(w, t);
      shards += divided(t.elements, Part::dense) * stored_bytes();
    }
    if (offloads_optimizer()) copy_sums(w, shards, Stream::data_reduce, first, last);
    else elementwise(w, "gradient partition", first ? shards : 2 * shards, shards, Stream::data_reduce);
  });
  if (last) copied_down_ += shards_of_tensors();
}

void Zero3::reduce_alone(plan::BlockWriter& w, const Tensor& t) {
  const std::int64_t bytes = t.elements * reduce_bytes_;
  const bool pads = t.elements % stage_.sizes.shard != 0;
  if (pads) {
    w.alloc(kInterleaved, bytes, Category::communication, Frame::own, pool_of(Stream::data_reduce));
    elementwise(w, "interleave gradients", bytes, bytes, Stream::data_reduce);
  }
  elementwise(w, "average gradients", bytes, bytes, Stream::data_reduce);
  over_groups(w, CollectiveKind::reduce_scatter, {bytes, 0}, "gradient reduction", Stream::data_reduce, 0);
  if (pads) w.free(kInterleaved);
}

/// qgZ: quantised to 4 bits in the order of their owners, exchanged inside the node, reduced and quantised again, exchanged
/// between nodes, and summed there in 16 bit.
void Zero3::reduce_quantised(plan::BlockWriter& w, const Tensor& t) {
  constexpr std::uint32_t kPacked = Stage::kPersistentSlots - 20, kReceived = Stage::kPersistentSlots - 21, kPartSums = Stage::kPersistentSlots - 22, kFromNodes = Stage::kPersistentSlots - 23,
                          kSums = Stage::kPersistentSlots - 24;
  const std::int64_t inside = stage_.sizes.inside, nodes = stage_.sizes.shard / inside;
  const std::int64_t columns = std::max<std::int64_t>(1, t.columns), rows = t.elements / columns;
  const std::int64_t groups = std::max({rows, columns, static_cast<std::int64_t>(stage_.sizes.shard)}), packed = t.elements / 2 + 4 * groups, part = t.elements / inside, reduced = part / 2 + 4 * (groups / inside);
  const auto buffer = [&](std::uint32_t slot, std::int64_t bytes) { w.alloc(slot, bytes, Category::communication, Frame::own, pool_of(Stream::data_reduce)); };
  const auto exchange = [&](GroupAxis axis, std::int64_t elements, std::int64_t scales, const char* name) {
    for (const std::int64_t bytes : {elements, scales}) w.collective(builder().collective({CollectiveKind::all_to_all, axis, Bytes{bytes}, name}), Stream::data_reduce, 0, profile().collective_host);
  };
  buffer(kPacked, packed);
  elementwise(w, "quantise gradients", t.elements * parameter_bytes_, packed, Stream::data_reduce);
  buffer(kReceived, packed);
  exchange(GroupAxis::data_inside, t.elements / 2, 4 * groups, "quantised gradients in the node");
  buffer(kPartSums, reduced);
  elementwise(w, "reduce quantised gradients", packed, reduced, Stream::data_reduce);
  buffer(kFromNodes, reduced);
  exchange(GroupAxis::data_across, part / 2, 4 * (groups / inside), "quantised gradients between nodes");
  buffer(kSums, 2 * part);
  elementwise(w, "dequantise gradients", reduced, 2 * part, Stream::data_reduce);
  for (std::int64_t n = 0; n < nodes; ++n) elementwise(w, "add nodes' gradients", 4 * part / nodes, 2 * part / nodes, Stream::data_reduce);
  elementwise(w, "average gradients", 2 * part / nodes, 2 * part / nodes, Stream::data_reduce);
  for (const std::uint32_t slot : {kPacked, kReceived, kPartSums, kFromNodes, kSums}) w.free(slot);
}

}  // namespace rehearse::strategies
