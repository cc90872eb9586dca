#include "strategies/data/sharded_writer.h"

#include <algorithm>

namespace rehearse::strategies {

using plan::Frame;
using plan::Phase;
using plan::Stream;

DType ShardedWriter::compute_dtype(const Stage& stage) {
  const Precision p = stage.strategy.training.precision;
  return p == Precision::fp32 || p == Precision::tf32 ? DType::fp32 : p == Precision::fp16 ? DType::fp16 : DType::bf16;
}

ShardedWriter::ShardedWriter(Stage& stage, DType reduce) : DataParallelWriter(stage), gathered_(stage.units.size()), kept_(stage.units.size()) {
  const auto& dp = stage.strategy.data_parallel;
  parameter_bytes_ = bits(dp.parameter_dtype.value_or(compute_dtype(stage))) / 8;
  reduce_bytes_ = bits(dp.reduce_dtype.value_or(reduce)) / 8;
  reshard_ = dp.reshard_after_forward.value_or(stage.sizes.pipeline == 1);
}

void ShardedWriter::begin_step() { std::fill(gathered_.begin(), gathered_.end(), false); }

void ShardedWriter::after_forward(std::size_t unit, int) {
  // What backward needs first stays (the last unit of the stage); the rest follows the reshard policy.
  if (reshard_ && unit + 1 != stage_.units.size()) release(unit, Phase::forward);
}

void ShardedWriter::end_evaluation() {
  for (std::size_t u = 0; u < gathered_.size(); ++u)
    if (gathered_[u]) release(u, evaluates() ? Phase::forward : Phase::backward);
}

std::int64_t ShardedWriter::parameter_shards() const {
  std::int64_t shards = 0;
  for (const Part part : kParts) {
    std::int64_t whole = 0;
    for (const Unit& u : stage_.units) whole += shared_bytes(u, stored_bytes(), part);
    shards += divided(whole / stored_bytes(), part) * stored_bytes();
  }
  return shards;
}

std::int64_t ShardedWriter::whole_states() const {
  std::int64_t n = 0;
  if (whole_states_)
    for (const Unit& u : stage_.units) n += u.tape->packed_states();
  return n;
}

std::string ShardedWriter::key(const char* what, const Unit& u) const {
  std::string& weights = weights_[u.tape];   // spelled once, asked for in every micro-batch
  if (weights.empty()) weights = " " + std::to_string(u.tape->elements()) + " " + std::to_string(u.tape->elements(Part::experts)) + " " + pattern_of(u);
  return what + weights;
}

void ShardedWriter::over_groups(plan::BlockWriter& w, CollectiveKind kind, const std::array<std::int64_t, 2>& bytes, const char* name, Stream stream, int sync) {
  constexpr std::uint32_t kReady = Stage::kPersistentSlots - 35, kDone = Stage::kPersistentSlots - 36;
  w.record(stream, kReady, events_);
  w.wait(Stream::data_shard, kReady, events_);
  for (std::size_t i = 0; i < kParts.size(); ++i)
    if (bytes[i] > 0 && stage_.sizes.sharing(kParts[i]) > 1) w.collective(builder().collective({kind, axis_of(kParts[i]), Bytes{bytes[i]}, name}), Stream::data_shard, sync, profile().collective_host);
  w.record(Stream::data_shard, kDone, events_);
  w.wait(stream, kDone, events_);
}

void ShardedWriter::sum_over_replicas(plan::BlockWriter& w, std::int64_t bytes) {
  const std::uint32_t reduced = Stage::kPersistentSlots - 5;
  w.record(Stream::data_reduce, reduced);
  w.wait(Stream::data_replicate, reduced);
  w.collective(builder().collective({CollectiveKind::all_reduce, plan::GroupAxis::data_replicate, Bytes{bytes}, "replica reduction"}), Stream::data_replicate, plan::kAfterCompute, profile().collective_host);
}

void ShardedWriter::wait_for_reductions(plan::BlockWriter& w) {
  for (Stream s : {Stream::data_reduce, Stream::data_replicate}) {
    w.record(s, Stage::kPersistentSlots - 2);
    w.wait(Stream::compute, Stage::kPersistentSlots - 2);
  }
}

void ShardedWriter::drop_gradients(const Unit& u) {
  stage_.call(key("drop gradients", u), Phase::gradient_reduction, &u, [&](plan::BlockWriter& w) { free_gradients_of(u, w); });
}

void ShardedWriter::release(std::size_t index, Phase phase) {
  const Unit& u = stage_.units[index];
  gathered_[index] = false;
  kept_[index] = false;
  if (u.tape->elements() == 0) return;
  stage_.call(key("reshard", u), phase, &u, [&](plan::BlockWriter& w) {
    w.free(extra(u, kUnsharded), Frame::unit);
    w.free(extra(u, kGathered), Frame::unit);  // without copy-out, or gathered ahead and not used
  });
}

}  // namespace rehearse::strategies
