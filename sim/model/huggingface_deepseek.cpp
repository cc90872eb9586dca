#include <algorithm>

#include <fmt/format.h>

#include "sim/model/huggingface_families.h"

namespace rehearse::model {

namespace {

ModelDescription read_deepseek(ModelFields& fields, const FamilyDefaults& defaults,
                               std::int64_t q_lora_rank) {
  // The class sets head_dim to the rotary part alone, and num_key_value_heads means nothing with latent
  // attention.
  fields.ignore({"head_dim"}, "latent attention has its own head sizes");
  fields.ignore({"num_key_value_heads"}, "latent attention has no key/value heads");
  ModelDescription model = read_llama_like(fields, defaults);
  LatentAttention& mla = model.latent;
  mla.q_lora_rank = fields.integer_or_zero("q_lora_rank", q_lora_rank);
  mla.kv_lora_rank = fields.integer({"kv_lora_rank"}, 512);
  mla.qk_nope_head_dim = fields.integer({"qk_nope_head_dim"}, 128);
  mla.qk_rope_head_dim = fields.integer({"qk_rope_head_dim"}, 64);
  mla.v_head_dim = fields.integer({"v_head_dim"}, 128);
  model.kv_heads = model.heads;
  model.head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim;
  model.rotary_dim = mla.qk_rope_head_dim;
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  return model;
}

}  // namespace

void read_deepseek_experts(ModelFields& fields, ModelDescription& model, const Experts& defaults,
                           std::int64_t shared_experts, std::int64_t dense_layers) {
  Experts& moe = model.experts;
  moe.experts = fields.integer({"n_routed_experts", "num_local_experts", "num_experts"}, defaults.experts);
  moe.top_k = fields.integer({"num_experts_per_tok"}, defaults.top_k);
  moe.ffn_hidden = fields.integer({"moe_intermediate_size"}, defaults.ffn_hidden);
  moe.shared_ffn_hidden = moe.ffn_hidden * fields.integer({"n_shared_experts"}, shared_experts);
  const std::int64_t groups = fields.integer_or_zero("n_group", defaults.groups);
  const std::int64_t visited = fields.integer_or_zero("topk_group", defaults.groups_per_token);
  // One group, or visiting all of them, limits nothing: one normal form for "any expert".
  if (groups > 1 && visited > 0 && visited < groups) {
    moe.groups = groups;
    moe.groups_per_token = visited;
  }
  const std::int64_t first = fields.integer({"first_k_dense_replace"}, dense_layers);
  const std::int64_t every = std::max<std::int64_t>(1, fields.integer({"moe_layer_freq"}, 1));
  for (std::int64_t i = 0; i < model.layer_count(); ++i)
    model.layers[static_cast<std::size_t>(i)].moe = i >= first && i % every == 0;
  const std::optional<std::vector<std::string>> kinds = fields.words({"mlp_layer_types"});
  if (!kinds) return;
  if (kinds->size() != model.layers.size())
    return fields.complain("mlp_layer_types", fmt::format("has {} entries for {} layers", kinds->size(), model.layers.size()));
  for (std::size_t i = 0; i < kinds->size(); ++i) {
    if ((*kinds)[i] != "sparse" && (*kinds)[i] != "dense")
      return fields.complain("mlp_layer_types", fmt::format("\"{}\" is not supported", (*kinds)[i]), "Supported: sparse, dense");
    model.layers[i].moe = (*kinds)[i] == "sparse";
  }
}

ModelDescription read_deepseek_v2(ModelFields& fields) {
  ModelDescription model = read_deepseek(fields, {11008, 32, 0, 0, 102400}, 1536);
  model.family = "deepseek_v2";
  model.mlp_bias = fields.flag({"mlp_bias"}, false);
  // The class leaves num_experts_per_tok open; both published models have 6.
  read_deepseek_experts(fields, model, {64, 6, 1407}, 2, 0);
  return model;
}

ModelDescription read_deepseek_v3(ModelFields& fields) {
  ModelDescription model = read_deepseek(fields, {18432, 128, 0, 0, 129280}, 1536);
  model.family = "deepseek_v3";
  Experts defaults{256, 8, 2048};
  defaults.groups = 8;
  defaults.groups_per_token = 4;
  read_deepseek_experts(fields, model, defaults, 1, 3);
  model.mtp_layers = fields.integer({"num_nextn_predict_layers", "num_mtp_layers"}, 0);
  return model;
}

/// GLM-4.7-Flash: DeepSeek's attention and experts in GLM's sizes.
ModelDescription read_glm4_moe_lite(ModelFields& fields) {
  ModelDescription model = read_deepseek(fields, {10240, 20, 0, 0, 154880}, 768);
  model.family = "glm4_moe_lite";
  read_deepseek_experts(fields, model, {64, 4, 1536}, 1, 1);
  model.mtp_layers = fields.integer({"num_nextn_predict_layers"}, 0);
  return model;
}

/// Youtu-LLM: DeepSeek's attention, dense.
ModelDescription read_youtu(ModelFields& fields) {
  FamilyDefaults defaults{6144, 16, 0, 0, 128256};
  defaults.tied = true;
  ModelDescription model = read_deepseek(fields, defaults, 1536);
  model.family = "youtu";
  return model;
}

ModelDescription read_llama4(ModelFields& fields) {
  ModelDescription model = read_llama_like(fields, {8192, 40, 8, 128, 202048});
  model.family = "llama4";
  // intermediate_size is the width of one expert and of the shared expert; dense layers have a field of their
  // own.
  Experts& moe = model.experts;
  moe.ffn_hidden = moe.shared_ffn_hidden = model.ffn_hidden;
  model.ffn_hidden = fields.integer({"intermediate_size_mlp"}, 16384);
  moe.experts = fields.integer({"num_local_experts", "num_experts"}, 16);
  moe.top_k = fields.integer({"num_experts_per_tok"}, 1);
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, false);
  model.qk_norm = fields.flag({"use_qk_norm"}, true);
  model.qk_norm_weight = false;

  const std::int64_t step = std::max<std::int64_t>(1, fields.integer({"interleave_moe_layer_step"}, 1));
  const std::optional<std::vector<std::int64_t>> moe_layers = fields.integers({"moe_layers"});
  read_layers_without_positions(fields, model, 4);
  for (std::int64_t i = 0; i < model.layer_count(); ++i)
    model.layers[static_cast<std::size_t>(i)].moe =
        moe_layers ? std::find(moe_layers->begin(), moe_layers->end(), i) != moe_layers->end() : (i + 1) % step == 0;
  const std::int64_t chunk = fields.integer_or_zero("attention_chunk_size", 8192);
  if (!read_layer_types(fields, model, chunk))
    set_windows(model, chunk, true,
                [&](std::int64_t i) { return model.layers[static_cast<std::size_t>(i)].rotary; });
  return model;
}

}  // namespace rehearse::model
