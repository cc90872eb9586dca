// The models of tests/oracles as our descriptions, and a plan of one step on one GPU for a row of its answers.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/model/shapes.h"
#include "strategies/plan_writer.h"
#include "tests/support/source_dir.h"

namespace rehearse::strategies {

inline nlohmann::json oracle(const std::string& name) {
  std::ifstream file(source_dir().string() + "/tests/oracles/data/" + name);
  return nlohmann::json::parse(file);
}

inline model::ModelDescription llama_like(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads, std::int64_t ffn, std::int64_t vocabulary) {
  model::Shapes s{.name = "llama", .layers = layers, .hidden = hidden, .heads = heads, .vocab = vocabulary};
  s.kv_heads = kv_heads;
  s.ffn_hidden = ffn;
  return model::make_from_shapes(s);
}

inline model::ModelDescription gpt_like(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t ffn, std::int64_t vocabulary, std::int64_t positions, double dropout) {
  model::Shapes s{.name = "gpt", .layers = layers, .hidden = hidden, .heads = heads, .vocab = vocabulary};
  s.gated = false;
  s.ffn_hidden = ffn;
  s.max_positions = positions;
  model::ModelDescription m = model::make_from_shapes(s);
  m.dropout = m.attention_dropout = dropout;
  return m;
}

/// The model of a row of torch_live_bytes.json or torch_flops.json.
inline model::ModelDescription model_of(const nlohmann::json& row) {
  const std::string name = row["model"];
  const std::int64_t layers = row["layers"];
  const double dropout = row.value("dropout", 0.0);
  if (name.find("gpt2") != name.npos) {
    const bool medium = name == "gpt2-medium";
    model::ModelDescription m = gpt_like(layers, medium ? 1024 : 768, medium ? 16 : 12, medium ? 4096 : 3072, 50257, 1024, dropout);
    m.activation = model::Activation::gelu_tanh;
    return m;
  }
  if (name == "plain-gpt") {
    model::ModelDescription m = gpt_like(layers, row["hidden"], row["heads"], row["ffn"], row["vocabulary"], row["positions"], dropout);
    if (row.value("spelled", false)) m.activation = model::Activation::gelu_tanh;
    return m;
  }
  if (name == "plain-llama") return llama_like(layers, row["hidden"], row["heads"], row["kv_heads"], row["ffn"], row["vocabulary"]);
  if (name == "hf-qwen3.5") {
    model::ModelDescription m = llama_like(layers, 2048, 8, 2, 6144, 32000);
    m.family = "qwen3_5";
    m.head_dim = 256;
    m.rotary_dim = 64;
    m.qk_norm = m.attention_gate = m.norm_weight_in_fp32 = true;
    const std::string kinds = row["kinds"];
    if (kinds.find('D') != kinds.npos) m.delta_net = {.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .convolution = 4};
    model::apply_layer_pattern(kinds, m);
    return m;
  }
  const bool eight = name.find("8b") != name.npos;
  model::ModelDescription m = eight ? llama_like(layers, 4096, 32, 8, 14336, 128256) : llama_like(layers, 4096, 32, 32, 11008, 32000);
  m.tied_embeddings = row.value("tied", false);
  m.softcapped_logits = row.value("softcapped", false);
  return m;
}

/// One step of one micro-batch on one GPU, as the row asks for it. The plain models are written out in
/// tests/oracles/helpers/plain_models.py; where they and the profile leave a choice, it is made here.
inline plan::Plan plan_of(const nlohmann::json& row) {
  const model::ModelDescription model = model_of(row);
  const std::string name = row["model"];
  const bool plain = name.starts_with("plain"), gpt = name.find("gpt") != name.npos;
  Strategy s;
  s.training.sequence_length = row["sequence"];
  s.training.global_batch_size = s.training.micro_batch_size = row["batch"];
  s.training.precision = row.value("precision", "bf16") == "fp32" ? Precision::fp32 : Precision::bf16;
  if (row.value("attention_implementation", "sdpa") == "eager") s.training.attention = "unfused";
  s.data_parallel.kind = DataParallelKind::none;
  s.memory.recompute = row.value("checkpointing", false) ? Recompute::full : Recompute::none;
  s.memory.tiled_mlp_num_shards = row.value("tiled_mlp_num_shards", 0);
  s.memory.tiled_mlp = s.memory.tiled_mlp_num_shards > 0;
  FrameworkProfile profile = with_precision(load_profile(plain ? "plain" : "huggingface"), s.training.precision);
  const bool autocast = row.value("precision", "bf16") == "autocast";   // torch.autocast around a model in fp32
  if (autocast) {
    profile.autocast = true;
    profile.stored_parameter = profile.gradient = profile.optimizer_state = DType::fp32;
  }
  profile.dropout = true;       // as much as the model has
  profile.fused_qkv = gpt;      // one projection, split
  if (row.value("spelled", false)) {
    profile.spelled_layer_norm = true;
    profile.activation = Fusion::eager;
  }
  if (plain) profile.loss = gpt ? LossKind::native : LossKind::upcast;
  if (row.value("tiled_loss", false)) profile.loss = LossKind::tiled;
  return write_plan(model, s, profile, 8);
}

/// Keys that the rules have something against, on nodes of eight GPUs, each with a blank behind it.
inline std::string keys_refused(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile) {
  std::string keys;
  for (const Diagnostic& d : problems_of(model, strategy, profile, 8)) keys += d.key + " ";
  return keys;
}

}  // namespace rehearse::strategies
