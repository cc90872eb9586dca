// Small hybrids and their jobs, for checks of mixers against formulas.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "sim/model/shapes.h"
#include "strategies/framework/profile.h"
#include "strategies/plan_writer.h"

namespace rehearse::strategies::hybrid_jobs {

inline constexpr std::int64_t kTokens = 2048, kHidden = 1024;

/// `mixer` says what state-space layers or delta rules are like.
template <typename Mixer>
model::ModelDescription hybrid_of(std::int64_t layers, const std::string& pattern, Mixer mixer) {
  model::ModelDescription m = model::make_from_shapes({.name = "hybrid", .layers = layers, .hidden = kHidden, .heads = 16, .vocab = 512, .kv_heads = 8, .ffn_hidden = 4096, .gated = true});
  mixer(m);
  EXPECT_EQ(model::apply_layer_pattern(pattern, m), "");
  return m;
}

inline Strategy job(int tensor = 1, std::int64_t batch = 1) {
  Strategy s;
  s.training.sequence_length = kTokens / batch;
  s.training.global_batch_size = s.training.micro_batch_size = batch;
  s.data_parallel.kind = DataParallelKind::none;
  s.memory.recompute = Recompute::none;
  s.parallelism.degrees.tensor = tensor;
  return s;
}

inline plan::Plan hybrid_plan(const model::ModelDescription& m, const Strategy& s, const std::string& profile) { return write_plan(m, s, load_profile(profile), s.parallelism.degrees.tensor); }

}  // namespace rehearse::strategies::hybrid_jobs
