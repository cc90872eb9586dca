#include <fmt/format.h>

#include <algorithm>

#include "sim/model/huggingface_families.h"

namespace rehearse::model {

namespace {

/// Qwen: a window counts only with use_sliding_window, and then only from layer max_window_layers on.
void read_qwen_windows(ModelFields& fields, ModelDescription& model) {
  const bool active = fields.flag({"use_sliding_window"}, false);
  const std::int64_t first = fields.integer({"max_window_layers"}, 28);
  const std::int64_t window = active ? fields.integer({"sliding_window"}, 4096) : 0;
  fields.ignore({"sliding_window"}, "use_sliding_window is false");
  if (!read_layer_types(fields, model, window))
    set_windows(model, window, false, [&](std::int64_t i) { return i >= first; });
}

}  // namespace

void read_qwen_moe_layers(ModelFields& fields, ModelDescription& model) {
  const std::int64_t step = std::max<std::int64_t>(1, fields.integer({"decoder_sparse_step"}, 1));
  const std::vector<std::int64_t> dense =
      fields.integers({"mlp_only_layers"}).value_or(std::vector<std::int64_t>{});
  for (std::int64_t i = 0; i < model.layer_count(); ++i)
    model.layers[static_cast<std::size_t>(i)].moe =
        std::find(dense.begin(), dense.end(), i) == dense.end() && (i + 1) % step == 0;
}

ModelDescription read_llama(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {11008, 32, 0, 0, 32000});
  model.family = "llama";
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  model.mlp_bias = fields.flag({"mlp_bias"}, false);
  return model;
}

/// Constants multiply embeddings, residuals, scores and logits; the rest is Llama's.
ModelDescription read_granite(ModelFields& fields) {
  ModelDescription model = read_llama(fields);
  model.family = "granite";
  return model;
}

ModelDescription read_helium(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {7040, 20, 0, 128, 48000});
  model.family = "helium";
  model.qkv_bias = fields.flag({"attention_bias"}, false);   // of q, k and v alone
  model.mlp_bias = fields.flag({"mlp_bias"}, false);
  return model;
}

/// Two matrices with a squared ReLU between them.
ModelDescription read_arcee(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {18432, 32, 0, 0, 32000, false, Activation::squared_relu});
  model.family = "arcee";
  model.gated_mlp = false;
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  model.mlp_bias = fields.flag({"mlp_bias"}, false);
  return model;
}

/// Every fourth layer has no positions.
ModelDescription read_smollm3(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {11008, 16, 4, 0, 128256, true});
  model.family = "smollm3";
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  model.mlp_bias = fields.flag({"mlp_bias"}, false);
  read_layers_without_positions(fields, model, 4);
  const std::int64_t window = fields.flag({"use_sliding_window"}, false) ? fields.integer({"sliding_window"}, 4096) : 0;
  fields.ignore({"sliding_window"}, "use_sliding_window is false");
  if (!read_layer_types(fields, model, window)) set_windows(model, window, false, [&](std::int64_t i) { return !model.layers[static_cast<std::size_t>(i)].rotary; });
  return model;
}

ModelDescription read_seed_oss(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {27648, 80, 8, 128, 155136});
  model.family = "seed_oss";
  model.qkv_bias = fields.flag({"attention_bias"}, true);
  model.attention_output_bias = fields.flag({"attention_out_bias"}, false);
  model.mlp_bias = fields.flag({"mlp_bias"}, false);
  model.dropout = fields.number({"residual_dropout"}, 0.1);
  return model;
}

ModelDescription read_ernie4_5(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {3072, 16, 2, 128, 103424, true});
  model.family = "ernie4_5";
  model.qkv_bias = model.attention_output_bias = model.mlp_bias = fields.flag({"use_bias"}, false);
  return model;
}

/// Published as remote code: one product makes queries, keys and values (its configuration_internlm2.py).
ModelDescription read_internlm2(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {11008, 32, 0, 0, 103168});
  model.family = "internlm2";
  model.fused_qkv = true;
  model.qkv_bias = model.attention_output_bias = fields.flag({"bias"}, true);
  return model;
}

/// GLM-4: half of each head is rotated, biases on q, k and v.
ModelDescription read_glm(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {13696, 32, 2, 128, 151552});
  model.family = "glm";
  model.qkv_bias = fields.flag({"attention_bias"}, true);
  model.rotary_dim = read_rotary_dim(fields, model, 0.5);
  return model;
}

ModelDescription read_mistral(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {14336, 32, 8, 0, 32000});
  model.family = "mistral";
  // Version 0.1 files hold 4096, later ones null; a file without the key predates neither and means the
  // class's 4096.
  const std::int64_t window = fields.integer_or_zero("sliding_window", 4096);
  if (!read_layer_types(fields, model, window))
    set_windows(model, window, false, [](std::int64_t) { return true; });
  return model;
}

/// Ministral 3 and what is built like it. Its queries are multiplied by a number that grows with the position, a kernel that is not simulated.
ModelDescription read_ministral3(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {14336, 32, 8, 128, 131072});
  model.family = "ministral3";
  set_windows(model, fields.integer_or_zero("sliding_window", 0), false, [](std::int64_t) { return true; });
  return model;
}

/// Code World Model: one layer of four sees everything, the first among them.
ModelDescription read_cwm(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {21504, 48, 8, 128, 128256});
  model.family = "cwm";
  model.mlp_bias = fields.flag({"mlp_bias"}, false);
  const std::int64_t window = fields.integer_or_zero("sliding_window", 8192);
  if (!read_layer_types(fields, model, window)) set_windows(model, window, false, [](std::int64_t i) { return i % 4 != 0; });
  return model;
}

ModelDescription read_qwen2(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {22016, 32, 0, 0, 151936});
  model.family = "qwen2";
  model.qkv_bias = true;  // fixed in the class; no file says it
  read_qwen_windows(fields, model);
  return model;
}

ModelDescription read_qwen3(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {22016, 32, 0, 128, 151936});
  model.family = "qwen3";
  model.qk_norm = true;
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  read_qwen_windows(fields, model);
  return model;
}

ModelDescription read_qwen2_moe(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {5632, 16, 0, 0, 151936});
  model.family = "qwen2_moe";
  model.qkv_bias = fields.flag({"qkv_bias"}, true);
  model.experts.experts = fields.integer({"num_experts", "num_local_experts"}, 60);
  model.experts.top_k = fields.integer({"num_experts_per_tok"}, 4);
  model.experts.ffn_hidden = fields.integer({"moe_intermediate_size"}, 1408);
  model.experts.shared_ffn_hidden = fields.integer({"shared_expert_intermediate_size"}, 5632);
  model.experts.shared_gate = model.experts.shared_ffn_hidden > 0;
  read_qwen_windows(fields, model);
  read_qwen_moe_layers(fields, model);
  return model;
}

ModelDescription read_qwen3_moe(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {6144, 32, 4, 0, 151936});
  model.family = "qwen3_moe";
  model.qk_norm = true;
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  model.experts.experts = fields.integer({"num_local_experts", "num_experts"}, 128);
  model.experts.top_k = fields.integer({"num_experts_per_tok"}, 8);
  model.experts.ffn_hidden = fields.integer({"moe_intermediate_size"}, 768);
  read_qwen_windows(fields, model);
  read_qwen_moe_layers(fields, model);
  return model;
}

ModelDescription read_phi3(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {8192, 32, 0, 0, 32064});
  model.family = "phi3";
  model.fused_qkv = true;
  fields.refuse_if_set("attention_bias", "the family's class has no biases");
  model.rotary_dim = read_rotary_dim(fields, model, 1.0);
  model.dropout = fields.number({"resid_pdrop"}, 0);
  const std::int64_t window = fields.integer_or_zero("sliding_window", 0);
  set_windows(model, window, false, [](std::int64_t) { return true; });
  return model;
}

ModelDescription read_gpt_oss(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {2880, 64, 8, 64, 201088});
  model.family = "gpt_oss";
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, true);
  model.attention_sinks = true;
  model.mlp_bias = true;  // experts have biases; no file says it
  model.clamped_activation = fields.number({"swiglu_limit"}, 7.0) > 0;
  model.experts.router_bias = true;
  model.experts.experts = fields.integer({"num_local_experts", "num_experts"}, 128);
  model.experts.top_k = fields.integer({"num_experts_per_tok"}, 4);
  model.experts.ffn_hidden = model.ffn_hidden;
  const std::int64_t window = fields.integer_or_zero("sliding_window", 128);
  if (!read_layer_types(fields, model, window))
    set_windows(model, window, false, [](std::int64_t i) { return i % 2 == 0; });
  all_layers_moe(model);
  return model;
}

}  // namespace rehearse::model
