#include "strategies/data/data_parallel.h"

#include <algorithm>

namespace rehearse::strategies {

using model::KernelKind;
using plan::Category;
using plan::GroupAxis;
using plan::Phase;

std::int64_t Stage::elements(Part part) const {
  std::int64_t n = 0;
  for (const Unit& u : units) n += u.tape->elements(part);
  return n;
}

std::int64_t Stage::trainable_elements(Part part) const {
  std::int64_t n = 0;
  for (const Unit& u : units) n += u.tape->trainable_elements(part);
  return n;
}

std::int64_t Stage::parameter_bytes(std::int64_t element, Part part) const {
  std::int64_t n = 0;
  for (const Unit& u : units) n += u.tape->parameter_bytes(element, part);
  return n;
}

std::int64_t Stage::trainable_bytes(std::int64_t element, Part part) const {
  std::int64_t n = 0;
  for (const Unit& u : units) n += u.tape->trainable_bytes(element, part);
  return n;
}

std::int64_t Stage::wide_trainable_elements(Part part) const {
  std::int64_t n = 0;
  for (const Unit& u : units)
    for (const Weight& w : u.tape->weights) n += w.in(part) && w.trainable && w.wide_bytes > 0 && !w.parameter_elsewhere ? w.elements : 0;
  return n;
}

void DataParallelWriter::persistent(const std::string& name, std::int64_t bytes, Category category) {
  if (bytes <= 0) return;
  const std::uint32_t slot = stage_.persistent_slot();
  stage_.call("allocate " + name + " " + std::to_string(slot) + " " + std::to_string(bytes), Phase::setup, nullptr,
              [&](plan::BlockWriter& w) { w.alloc(slot, bytes, category); });
}

std::int64_t DataParallelWriter::moments() const {
  switch (stage_.strategy.training.optimizer) {
    case Optimizer::sgd: return 0;
    case Optimizer::momentum: return 1;
    case Optimizer::adamw: return 2;
  }
  return 0;
}

std::int64_t DataParallelWriter::state_bytes() const { return moments() * bits(profile().optimizer_state) / 8 + (profile().master_parameters ? 4 : 0); }

DataParallelWriter::Share DataParallelWriter::share(bool sharded, std::int64_t gradient) const {
  Share mine;
  for (const Part part : kParts) {
    const std::int64_t ranks = sharded ? stage_.sizes.sharing(part) : 1;
    auto divided = [&](std::int64_t n) { return (n + ranks - 1) / ranks; };
    const std::int64_t wide = divided(stage_.wide_trainable_elements(part)), usual = divided(stage_.trainable_elements(part) - stage_.wide_trainable_elements(part));
    // What is kept in fp32 beside a 16-bit model is its own master copy.
    mine.elements += usual + wide;
    mine.stored += usual * stored_bytes() + wide * 4;
    mine.gradients += usual * gradient + wide * 4;
    mine.states += usual * state_bytes() + wide * moments() * 4;
    mine.master = mine.master || (profile().master_parameters && usual > 0);
  }
  return mine;
}

void DataParallelWriter::sum_copies(const Share& mine) {
  if (stage_.sizes.copies == 1 || mine.gradients == 0) return;
  const std::int64_t bytes = mine.gradients;
  stage_.call("sum gradients of both copies " + std::to_string(bytes), Phase::gradient_reduction, nullptr, [&](plan::BlockWriter& w) {
    w.collective(builder().collective({CollectiveKind::all_reduce, GroupAxis::mirror, Bytes{bytes}, "gradients of both copies"}), plan::Stream::data_reduce, plan::kAfterCompute | plan::kComputeWaits,
                 profile().collective_host);
  });
}

void DataParallelWriter::clip(const Share& mine, bool sharded) {
  const std::int64_t bytes = mine.gradients;
  if (!stage_.strategy.training.clip_gradients || (bytes == 0 && stage_.sizes.pipeline == 1)) return;  // a frozen stage, or the loss alone, takes part in the sum
  const std::string key = "clip gradients " + std::to_string(bytes) + (sharded ? " sharded" : "");
  stage_.call(key, Phase::optimizer, nullptr, [&](plan::BlockWriter& w) {
    w.kernel(builder().kernel({.kind = KernelKind::reduction, .dtype = DType::fp32, .bytes_read = bytes, .bytes_written = 4096, .name = "gradient norm"}), host());
    const int both = plan::kAfterCompute | plan::kComputeWaits;
    auto sum = [&](GroupAxis axis) {
      w.collective(builder().collective({CollectiveKind::all_reduce, axis, Bytes{4}, "gradient norm"}), plan::Stream::data_reduce, both, profile().collective_host);
    };
    if (sharded && stage_.sizes.shard > 1) sum(GroupAxis::data);
    const bool in_passing = stage_.strategy.pipeline.post_validation && stage_.sizes.pipeline > 1;
    if (in_passing && stage_.sizes.tensor > 1) sum(GroupAxis::tensor);
    if (in_passing) pass_norm_on(w);
    else if (stage_.sizes.tensor * stage_.sizes.pipeline > 1) sum(GroupAxis::model);
    if (profile().gradient_norm_sync) w.host_sync();
    w.kernel(builder().kernel({.kind = KernelKind::elementwise, .dtype = DType::fp32, .bytes_read = bytes, .bytes_written = bytes, .name = "clip gradients"}), host());
  });
}

void DataParallelWriter::pass_norm_on(plan::BlockWriter& w) {
  constexpr std::uint8_t kChannel = 2;  // beside activations and gradients
  const int both = plan::kAfterCompute | plan::kComputeWaits;
  if (stage_.sizes.stage_before >= 0)
    w.recv(builder().message({static_cast<std::uint16_t>(stage_.sizes.stage_before), kChannel, Bytes{4}}), plan::Stream::recv_forward, both, profile().collective_host);
  w.kernel(builder().kernel({.kind = KernelKind::elementwise, .dtype = DType::fp32, .bytes_read = 8, .bytes_written = 4, .name = "add to norm"}), host());
  if (stage_.sizes.stage_after >= 0)
    w.send(builder().message({static_cast<std::uint16_t>(stage_.sizes.stage_after), kChannel, Bytes{4}}), plan::Stream::send_forward, plan::kAfterCompute, profile().collective_host);
}

void DataParallelWriter::update(const Share& mine) {
  if (mine.elements == 0) return;
  const std::int64_t elements = mine.elements;
  const std::int64_t read = mine.gradients + mine.states + (mine.master ? 0 : mine.stored);
  const std::int64_t written = mine.states + mine.stored;
  stage_.call("optimizer step " + std::to_string(elements) + " " + std::to_string(mine.gradients), Phase::optimizer, nullptr, [&](plan::BlockWriter& w) {
    const std::int64_t extra = profile().fused_optimizer ? 0 : mine.stored;
    const std::uint32_t slot = Stage::kPersistentSlots - 1;
    w.alloc(slot, extra, Category::temporary);
    // One fused pass reads p, g, m, v and writes p, m, v: 7 streams. torch.optim's foreach AdamW is eight operations: mul p (2),
    // lerp m (3), mul v (2), addcmul v (3), sqrt (2), div (2), add eps (2), addcdiv p (4): 20 streams.
    const double passes = profile().fused_optimizer ? 1.0 : 20.0 / 7.0;
    w.kernel(builder().kernel({.kind = KernelKind::optimizer, .dtype = DType::fp32, .bytes_read = static_cast<std::int64_t>(static_cast<double>(read) * passes),
                               .bytes_written = static_cast<std::int64_t>(static_cast<double>(written) * passes), .flops = 12.0 * static_cast<double>(elements), .name = "optimizer step"}),
             host());
    w.free(slot);
  });
}

}  // namespace rehearse::strategies
