// Hybrids: layers whose tokens a state-space scan or a delta rule mixes, beside layers with attention.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "sim/model/huggingface_families.h"
#include "sim/model/shapes.h"

namespace rehearse::model {

namespace {

/// What a layer's type stands for, in the letters of apply_layer_pattern; transformers has renamed them twice.
char letter_of(const std::string& type) {
  if (type == "linear_attention" || type == "mamba") return 'M';
  if (type == "full_attention" || type == "attention") return '*';
  if (type == "mlp") return '-';
  return type == "moe" ? 'E' : '?';
}

/// The letters of a list of types; "" where there is none. `whole`: that of a layer whose mixer is linear, where each has an MLP or experts too.
std::string read_types(ModelFields& fields, ModelFields::Names names, std::optional<char> whole) {
  std::string letters;
  for (const std::string& type : fields.words(names).value_or(std::vector<std::string>{})) {
    const char letter = letter_of(type);
    if (letter == '?' || (whole && (letter == '-' || letter == 'E'))) {
      fields.complain(*names.begin(), fmt::format("\"{}\" is not supported", type), whole ? "Supported: linear_attention, full_attention" : "Supported: linear_attention, full_attention, mlp, moe");
      return "";
    }
    letters += !whole ? letter : letter == 'M' ? *whole : 'T';
  }
  return letters;
}

void give_parts(ModelFields& fields, ModelDescription& model, const std::string& letters, const char* key) {
  if (static_cast<std::int64_t>(letters.size()) != model.layer_count()) return fields.complain(key, fmt::format("has {} entries for {} layers", letters.size(), model.layer_count()));
  const std::string problem = apply_layer_pattern(letters, model);
  if (!problem.empty()) fields.complain(key, problem);
  const bool scans = std::any_of(model.layers.begin(), model.layers.end(), [](const Layer& layer) { return layer.mixer == Mixer::state_space; });
  if (!scans) model.state_space = {};
}

/// Bamba's names, which Granite 4 has too.
StateSpace read_bamba_mixer(ModelFields& fields, std::int64_t hidden) {
  StateSpace mixer;
  mixer.heads = fields.integer({"mamba_n_heads"}, 128);
  const std::int64_t expand = fields.integer({"mamba_expand"}, 2);
  const config::Value* head = fields.find({"mamba_d_head"});
  const bool derived = head == nullptr || head->text() == "auto";
  mixer.head_dim = derived ? (mixer.heads > 0 ? expand * hidden / mixer.heads : 0) : fields.integer({"mamba_d_head"});
  mixer.groups = fields.integer({"mamba_n_groups"}, 1);
  mixer.state = fields.integer({"mamba_d_state"}, 256);
  mixer.convolution = fields.integer({"mamba_d_conv"}, 4);
  mixer.chunk = fields.integer({"mamba_chunk_size"}, 256);
  mixer.convolution_bias = fields.flag({"mamba_conv_bias"}, true);
  fields.refuse_if_set("mamba_proj_bias", "biases of a state-space mixer's products are not supported");
  return mixer;
}

/// What Qwen3-Next and Qwen 3.5 share: gated attention in every fourth layer, a quarter of its heads rotated, delta rules in the others.
void read_qwen_mixers(ModelFields& fields, ModelDescription& model) {
  model.qk_norm = model.attention_gate = model.norm_weight_in_fp32 = true;
  model.rotary_dim = read_rotary_dim(fields, model, 0.25);
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  DeltaNet& mixer = model.delta_net;
  mixer.key_heads = fields.integer({"linear_num_key_heads"}, 16);
  mixer.value_heads = fields.integer({"linear_num_value_heads"}, 32);
  mixer.key_dim = fields.integer({"linear_key_head_dim"}, 128);
  mixer.value_dim = fields.integer({"linear_value_head_dim"}, 128);
  mixer.convolution = fields.integer({"linear_conv_kernel_dim"}, 4);
  const std::int64_t every = std::max<std::int64_t>(1, fields.integer({"full_attention_interval"}, 4));
  std::string letters = read_types(fields, {"layer_types"}, 'D');
  if (letters.empty())
    for (std::int64_t layer = 1; layer <= model.layer_count(); ++layer) letters += layer % every == 0 ? 'T' : 'D';
  give_parts(fields, model, letters, "layer_types");
  fields.ignore({"attn_output_gate", "mamba_ssm_dtype"}, "as the family's class has it");
  fields.ignore({"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"}, "its class has no multi-token-prediction layers");
}

void read_gated_experts(ModelFields& fields, ModelDescription& model, std::int64_t count, std::int64_t top_k) {
  Experts& moe = model.experts;
  moe.experts = fields.integer({"num_experts", "num_local_experts"}, count);
  moe.top_k = fields.integer({"num_experts_per_tok"}, top_k);
  moe.ffn_hidden = fields.integer({"moe_intermediate_size"}, 512);
  moe.shared_ffn_hidden = fields.integer({"shared_expert_intermediate_size"}, 512);
  moe.shared_gate = moe.shared_ffn_hidden > 0;
}

}  // namespace

ModelDescription read_nemotron_h(ModelFields& fields) {
  std::string letters = fields.word({"hybrid_override_pattern"}, "");
  const bool by_pattern = !letters.empty();
  if (!by_pattern) letters = read_types(fields, {"layer_types", "layers_block_type"}, std::nullopt);
  ModelDescription model;
  model.family = "nemotron_h";
  model.hidden = fields.integer({"hidden_size"}, 4096);
  set_layer_count(model, static_cast<std::int64_t>(letters.size()));
  model.heads = fields.integer({"num_attention_heads"}, 32);
  model.kv_heads = fields.integer({"num_key_value_heads"}, 8);
  model.head_dim = fields.integer({"head_dim", "attention_head_dim"}, 128);
  model.ffn_hidden = fields.integer({"intermediate_size"}, 21504);
  model.vocab = fields.integer({"vocab_size"}, 131072);
  model.gated_mlp = false;
  model.activation = fields.activation({"mlp_hidden_act"}, Activation::squared_relu);
  model.position = Position::none;
  model.tied_embeddings = fields.flag({"tie_word_embeddings"}, false);
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  model.mlp_bias = fields.flag({"mlp_bias"}, false);
  model.attention_dropout = fields.number({"attention_dropout"}, 0);
  StateSpace& mixer = model.state_space;
  mixer.heads = fields.integer({"mamba_num_heads"}, 128);
  mixer.head_dim = fields.integer({"mamba_head_dim"}, 64);
  mixer.groups = fields.integer({"n_groups", "mamba_n_groups"}, 8);
  mixer.state = fields.integer({"ssm_state_size"}, 128);
  mixer.convolution = fields.integer({"conv_kernel", "mamba_d_conv"}, 4);
  mixer.chunk = fields.integer({"chunk_size", "mamba_chunk_size"}, 128);
  mixer.convolution_bias = fields.flag({"use_conv_bias", "mamba_conv_bias"}, true);
  for (const char* bias : {"mamba_proj_bias", "use_bias"}) fields.refuse_if_set(bias, "biases of a state-space mixer's products are not supported");
  fields.ignore({"expand", "mamba_expand"}, "the mixer's heads and their width are given");
  fields.ignore({"mamba_hidden_act"}, "part of the convolution's kernel");
  fields.ignore({"hidden_dropout", "sliding_window"}, "its class does not read it");
  fields.ignore({"n_shared_experts"}, "the width of all shared experts is given");
  model.mtp_layers = fields.integer({"num_nextn_predict_layers"}, 0);
  fields.ignore({"mtp_layers_block_type", "mtp_hybrid_override_pattern"}, "further heads are taken to be attention with an MLP or experts");
  fields.refuse_if_set("residual_in_fp32", "an fp32 residual stream is not supported");
  if (letters.find('E') == std::string::npos) {
    for (const char* key : {"n_routed_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_shared_expert_intermediate_size", "n_group", "topk_group", "moe_latent_size"})
      fields.ignore({key}, "no layer has experts");
  } else {
    Experts& moe = model.experts;
    moe.experts = fields.integer({"n_routed_experts", "num_local_experts"}, 8);
    moe.top_k = fields.integer({"num_experts_per_tok"}, 2);
    moe.ffn_hidden = fields.integer({"moe_intermediate_size"}, 7688);
    moe.shared_ffn_hidden = fields.integer({"moe_shared_expert_intermediate_size"}, 7688);
    moe.groups = fields.integer({"n_group"}, 1);
    moe.groups_per_token = fields.integer({"topk_group"}, 1);
    if (moe.groups <= 1) moe.groups = moe.groups_per_token = 0;
    moe.latent = fields.integer_or_zero("moe_latent_size", 0);
  }
  give_parts(fields, model, letters, by_pattern ? "hybrid_override_pattern" : "layer_types");
  return model;
}

ModelDescription read_bamba(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {14336, 32, 8, 0, 128000});
  model.family = "bamba";
  model.rotary_dim = read_rotary_dim(fields, model, 0.5);
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  model.mlp_bias = fields.flag({"mlp_bias"}, false);
  model.state_space = read_bamba_mixer(fields, model.hidden);
  std::string letters = read_types(fields, {"layer_types", "layers_block_type"}, 'S');
  if (letters.empty()) {
    letters.assign(model.layers.size(), 'S');
    for (const std::int64_t layer : fields.integers({"attn_layer_indices"}).value_or(std::vector<std::int64_t>{}))
      if (layer >= 0 && layer < model.layer_count()) letters[static_cast<std::size_t>(layer)] = 'T';
  }
  give_parts(fields, model, letters, "layer_types");
  return model;
}

ModelDescription read_granitemoehybrid(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {11008, 32, 0, 0, 32000});
  model.family = "granitemoehybrid";
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  if (fields.word({"position_embedding_type"}, "none") != "rope") {
    model.position = Position::none;
    model.rotary_dim = 0;
  }
  const std::int64_t shared = fields.integer({"shared_intermediate_size"}, 1024);
  model.experts.experts = fields.integer({"num_local_experts"}, 8);
  if (model.experts.experts > 0) {
    model.experts.top_k = fields.integer({"num_experts_per_tok"}, 2);
    model.experts.ffn_hidden = model.ffn_hidden;
    model.experts.shared_ffn_hidden = shared;
    all_layers_moe(model);
  } else {
    model.ffn_hidden = shared;   // the MLP that every token goes through is all there is
    fields.ignore({"num_experts_per_tok"}, "there are no experts");
  }
  model.state_space = read_bamba_mixer(fields, model.hidden);
  std::string letters = read_types(fields, {"layer_types", "layers_block_type"}, 'S');
  if (letters.empty()) letters.assign(model.layers.size(), 'S');
  give_parts(fields, model, letters, "layer_types");
  return model;
}

ModelDescription read_qwen3_next(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {5632, 16, 2, 256, 151936});
  model.family = "qwen3_next";
  read_gated_experts(fields, model, 512, 10);
  read_qwen_moe_layers(fields, model);
  read_qwen_mixers(fields, model);
  return model;
}

ModelDescription read_qwen3_5(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {12288, 16, 4, 256, 248320});
  model.family = "qwen3_5";
  read_qwen_mixers(fields, model);
  return model;
}

ModelDescription read_qwen3_5_moe(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {12288, 16, 2, 256, 248320});
  model.family = "qwen3_5_moe";
  model.ffn_hidden = 0;   // no layer has a dense MLP
  read_gated_experts(fields, model, 256, 8);
  all_layers_moe(model);
  read_qwen_mixers(fields, model);
  return model;
}

}  // namespace rehearse::model
