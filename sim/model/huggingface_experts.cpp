#include <algorithm>

#include "sim/model/huggingface_families.h"

namespace rehearse::model {

namespace {

/// Every layer has experts and no other MLP: the file's MLP width is one expert's.
void read_experts_alone(ModelFields& fields, ModelDescription& model, std::int64_t count, std::int64_t top_k) {
  model.experts.experts = fields.integer({"num_local_experts", "num_experts"}, count);
  model.experts.top_k = fields.integer({"num_experts_per_tok"}, top_k);
  model.experts.ffn_hidden = model.ffn_hidden;
  all_layers_moe(model);
}

}  // namespace

ModelDescription read_mixtral(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {14336, 32, 8, 0, 32000});
  model.family = "mixtral";
  read_experts_alone(fields, model, 8, 2);
  const std::int64_t window = fields.integer_or_zero("sliding_window", 0);
  set_windows(model, window, false, [](std::int64_t) { return true; });
  return model;
}

ModelDescription read_olmoe(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {2048, 16, 0, 0, 50304});
  model.family = "olmoe";
  model.qk_norm = model.joint_qk_norm = true;
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  read_experts_alone(fields, model, 64, 8);
  return model;
}

ModelDescription read_granitemoe(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {11008, 32, 0, 0, 32000});
  model.family = "granitemoe";
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  read_experts_alone(fields, model, 8, 2);
  model.experts.shared_ffn_hidden = fields.integer({"shared_intermediate_size"}, 0);
  return model;
}

ModelDescription read_phimoe(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {6400, 32, 8, 0, 32064});
  model.family = "phimoe";
  model.norm = Norm::layer_norm;
  model.norm_bias = true;
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  model.head_bias = fields.flag({"lm_head_bias"}, false);
  model.dropout = fields.number({"hidden_dropout"}, 0);
  read_experts_alone(fields, model, 16, 2);
  const std::int64_t window = fields.integer_or_zero("sliding_window", 0);
  set_windows(model, window, false, [](std::int64_t) { return true; });
  return model;
}

ModelDescription read_minimax_m2(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {1536, 48, 8, 128, 200064});
  model.family = "minimax_m2";
  model.qk_norm = model.joint_qk_norm = true;
  model.rotary_dim = fields.is_present("rotary_dim") ? fields.integer({"rotary_dim"}) : read_rotary_dim(fields, model, 1.0);
  read_experts_alone(fields, model, 256, 8);
  fields.ignore({"use_mtp", "num_mtp_modules", "mtp_transformer_layers"}, "the published checkpoint has no multi-token-prediction layers");
  return model;
}

/// The router's correction of its scores is a parameter of the class, though nothing trains it.
ModelDescription read_ernie4_5_moe(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {12288, 20, 4, 0, 103424, true});
  model.family = "ernie4_5_moe";
  model.qkv_bias = model.attention_output_bias = model.mlp_bias = fields.flag({"use_bias"}, false);
  Experts& moe = model.experts;
  moe.experts = fields.integer({"moe_num_experts"}, 64);
  moe.top_k = fields.integer({"moe_k"}, 6);
  moe.ffn_hidden = fields.integer({"moe_intermediate_size"}, 1536);
  moe.shared_ffn_hidden = moe.ffn_hidden * fields.integer({"moe_num_shared_experts"}, 2);
  moe.router_bias = true;
  const std::int64_t first = fields.integer({"moe_layer_start_index"}, 1), end = fields.integer({"moe_layer_end_index"}, -1);
  const std::int64_t last = end < 0 ? model.layer_count() - 1 : end;
  const std::int64_t every = std::max<std::int64_t>(1, fields.integer({"moe_layer_interval"}, 1));
  for (std::int64_t i = 0; i < model.layer_count(); ++i)
    model.layers[static_cast<std::size_t>(i)].moe = i >= first && i <= last && (i + 1) % every == 0;
  return model;
}

ModelDescription read_dots1(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {10944, 32, 32, 0, 152064});
  model.family = "dots1";
  model.qk_norm = true;
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  read_deepseek_experts(fields, model, {128, 6, 1408}, 2, 0);
  const std::int64_t first = fields.integer({"max_window_layers"}, 62), window = fields.integer_or_zero("sliding_window", 0);
  if (!read_layer_types(fields, model, window)) set_windows(model, window, false, [&](std::int64_t i) { return i >= first; });
  return model;
}

/// GLM-4.5: DeepSeek's experts under grouped attention.
ModelDescription read_glm4_moe(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {10944, 96, 8, 0, 151552});
  model.family = "glm4_moe";
  model.qkv_bias = fields.flag({"attention_bias"}, false);
  model.qk_norm = fields.flag({"use_qk_norm"}, false);
  model.rotary_dim = read_rotary_dim(fields, model, 0.5);
  read_deepseek_experts(fields, model, {128, 8, 1408}, 1, 1);
  model.mtp_layers = fields.integer({"num_nextn_predict_layers"}, 0);
  return model;
}

/// Solar Open: GLM-4.5's experts in every layer.
ModelDescription read_solar_open(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {1280, 64, 8, 128, 196608});
  model.family = "solar_open";
  model.qkv_bias = fields.flag({"attention_bias"}, false);
  read_deepseek_experts(fields, model, {128, 8, 1280}, 1, 0);
  return model;
}

}  // namespace rehearse::model
