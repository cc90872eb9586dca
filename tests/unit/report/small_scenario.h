// Scenarios small enough to simulate in every test of this room.
#pragma once

#include <string>

#include "sim/config/document.h"
#include "sim/config/layers.h"
#include "sim/scenario/simulate.h"

namespace rehearse::report {

/// A model of 4 layers on 8 GPUs; `overrides` as --set takes them.
inline scenario::Scenario small_scenario(const std::vector<std::string>& overrides = {}) {
  const config::Document document = config::parse_document(R"(
title: four layers on eight GPUs
model: {name: tiny, layers: 4, hidden: 1024, heads: 8, kv_heads: 4, ffn_hidden: 2816, vocab: 32000}
cluster: {node: dgx-h100, nodes: 1}
training: {sequence_length: 1024, global_batch_size: 32, micro_batch_size: 1, framework: torchtitan}
data_parallel: {kind: fsdp2}
)",
                                                           "small.yaml");
  return scenario::read_scenario(config::apply_overrides(document.root, overrides), "small.yaml");
}

/// The same over four pipeline stages.
inline scenario::Scenario pipelined_scenario() {
  return small_scenario({"parallelism={pipeline: 4}", "pipeline={schedule: 1f1b}", "data_parallel={kind: ddp}", "training.framework=megatron-core"});
}

/// One that no GPU holds.
inline scenario::Scenario huge_scenario() { return small_scenario({"model=llama-3-70b", "data_parallel={kind: ddp}"}); }

inline scenario::Result simulated(const scenario::Scenario& s) { return simulate(s, {.trace = true, .timeline = true}); }

}  // namespace rehearse::report
