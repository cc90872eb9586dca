#include "sim/model/huggingface_families.h"

namespace rehearse::model {

namespace {

void layer_norms(ModelDescription& model, bool bias) {
  model.norm = Norm::layer_norm;
  model.norm_bias = bias;
}

/// Every n-th layer attends to everything.
void read_pattern(ModelFields& fields, ModelDescription& model, std::int64_t window, std::int64_t fallback) {
  if (fields.is_present("layer_types")) fields.ignore({"sliding_window_pattern"}, "layer_types says it for each layer");
  if (read_layer_types(fields, model, window)) return;
  const std::int64_t pattern = fields.integer({"sliding_window_pattern", "_sliding_window_pattern"}, fallback);
  if (pattern < 1) return fields.complain("sliding_window_pattern", "must be at least 1");
  set_windows(model, window, false, [&](std::int64_t i) { return (i + 1) % pattern != 0; });
}

/// Only layers with a window rotate queries and keys.
void rotate_local_layers_alone(ModelDescription& model) {
  for (Layer& layer : model.layers) layer.rotary = layer.window > 0;
}

}  // namespace

/// Norms without anything to learn.
ModelDescription read_olmo(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {11008, 32, 0, 0, 50304});
  model.family = "olmo";
  layer_norms(model, false);
  model.norm_weight = false;
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  return model;
}

/// Norms after attention and MLP, and one over all heads of queries and keys.
ModelDescription read_olmo2(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {11008, 32, 0, 0, 50304});
  model.family = "olmo2";
  model.norms_after = model.qk_norm = model.joint_qk_norm = true;
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  return model;
}

ModelDescription read_olmo3(ModelFields& fields) {
  ModelDescription model = read_olmo2(fields);
  model.family = "olmo3";
  read_pattern(fields, model, fields.integer_or_zero("sliding_window", 4096), 4);
  return model;
}

ModelDescription read_exaone4(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {16384, 32, 0, 0, 102400});
  model.family = "exaone4";
  model.norms_after = model.qk_norm = true;
  if (const std::int64_t window = fields.integer_or_zero("sliding_window", 4096); window > 0) {
    read_pattern(fields, model, window, 4);
    rotate_local_layers_alone(model);
  } else {
    fields.ignore({"layer_types", "sliding_window_pattern"}, "sliding_window is null");
  }
  return model;
}

/// GLM-4 of 2025: a norm before and one after each half.
ModelDescription read_glm4(ModelFields& fields) {
  ModelDescription model = read_glm(fields);
  model.family = "glm4";
  model.norms_per_layer = 4;
  return model;
}

/// Command R: attention and MLP side by side behind one norm without bias.
ModelDescription read_cohere(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {22528, 64, 0, 0, 256000, true});
  model.family = "cohere";
  layer_norms(model, false);
  model.parallel_residual = true;
  model.norms_per_layer = 1;
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  // Each head has weights of its own: as many as a norm over all of them.
  model.qk_norm = model.joint_qk_norm = fields.flag({"use_qk_norm"}, false);
  return model;
}

ModelDescription read_cohere2(ModelFields& fields) {
  ModelDescription model = read_cohere(fields);
  model.family = "cohere2";
  read_pattern(fields, model, fields.integer_or_zero("sliding_window", 4096), 4);
  rotate_local_layers_alone(model);
  return model;
}

ModelDescription read_stablelm(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {6912, 32, 32, 0, 50304});
  model.family = "stablelm";
  layer_norms(model, true);
  model.qkv_bias = fields.flag({"use_qkv_bias"}, false);
  model.parallel_residual = fields.flag({"use_parallel_residual"}, false);
  model.norms_per_layer = model.parallel_residual ? 1 : 2;
  model.rotary_dim = read_rotary_dim(fields, model, 0.25);
  model.dropout = fields.number({"hidden_dropout"}, 0);
  fields.refuse_if_set("qk_layernorm", "norms with a weight for each head are not supported");
  return model;
}

ModelDescription read_nemotron(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {24576, 48, 0, 0, 256000, false, Activation::squared_relu});
  model.family = "nemotron";
  layer_norms(model, true);
  model.gated_mlp = false;
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  model.mlp_bias = fields.flag({"mlp_bias"}, false);
  model.rotary_dim = read_rotary_dim(fields, model, 0.5);
  return model;
}

ModelDescription read_starcoder2(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {12288, 24, 2, 0, 49152, true, Activation::gelu_tanh});
  model.family = "starcoder2";
  layer_norms(model, true);
  model.gated_mlp = false;
  model.qkv_bias = model.attention_output_bias = model.mlp_bias = fields.flag({"use_bias"}, true);
  model.dropout = fields.number({"residual_dropout"}, 0);
  const std::int64_t window = fields.integer_or_zero("sliding_window", 0);
  if (!read_layer_types(fields, model, window)) set_windows(model, window, false, [](std::int64_t) { return true; });
  return model;
}

}  // namespace rehearse::model
