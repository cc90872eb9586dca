#include "sim/model/huggingface_families.h"

namespace rehearse::model {

namespace {

/// LayerNorm with bias, two-matrix MLP with GELU, biases everywhere.
ModelDescription gpt_like(const char* family) {
  ModelDescription model;
  model.family = family;
  model.gated_mlp = false;
  model.activation = Activation::gelu;
  model.norm = Norm::layer_norm;
  model.norm_bias = true;
  model.qkv_bias = model.attention_output_bias = model.mlp_bias = true;
  return model;
}

void derive_heads(ModelDescription& model, std::int64_t kv_heads) {
  model.kv_heads = kv_heads;
  model.head_dim = derived_head_dim(model);
}

}  // namespace

namespace {

/// The field names that GPT-2 and its descendants share.
ModelDescription gpt2_like(ModelFields& fields, const char* family) {
  ModelDescription model = gpt_like(family);
  model.hidden = fields.integer({"n_embd", "hidden_size"});
  set_layer_count(model, fields.integer({"n_layer", "num_hidden_layers"}));
  model.heads = fields.integer({"n_head", "num_attention_heads"}, 12);
  derive_heads(model, model.heads);
  model.ffn_hidden = fields.integer({"n_inner"}, 4 * model.hidden);
  model.vocab = fields.integer({"vocab_size"}, 50257);
  model.activation = fields.activation({"activation_function"}, Activation::gelu_tanh);
  model.dropout = fields.number({"resid_pdrop"}, 0.1);
  model.attention_dropout = fields.number({"attn_pdrop"}, 0.1);
  return model;
}

void learn_positions(ModelFields& fields, ModelDescription& model) {
  model.fused_qkv = true;
  model.position = Position::learned;
  model.max_positions = fields.integer({"n_positions", "max_position_embeddings"}, 1024);
  model.tied_embeddings = fields.flag({"tie_word_embeddings"}, true);
  fields.refuse_if_set("add_cross_attention", "cross-attention is not supported (decoder-only models are)");
}

/// The field names that GPT-NeoX and Persimmon share, with the defaults that each class has of its own.
ModelDescription gpt_neox_like(ModelFields& fields, const char* family, std::int64_t ffn_hidden, std::int64_t vocab, Activation activation) {
  ModelDescription model = gpt_like(family);
  model.fused_qkv = true;
  model.hidden = fields.integer({"hidden_size"});
  set_layer_count(model, fields.integer({"num_hidden_layers"}));
  model.heads = fields.integer({"num_attention_heads"}, 64);
  derive_heads(model, model.heads);
  model.ffn_hidden = fields.integer({"intermediate_size"}, ffn_hidden);
  model.vocab = fields.integer({"vocab_size"}, vocab);
  model.activation = fields.activation({"hidden_act"}, activation);
  return model;
}

}  // namespace

ModelDescription read_gpt2(ModelFields& fields) {
  ModelDescription model = gpt2_like(fields, "gpt2");
  learn_positions(fields, model);
  return model;
}

/// StarCoder 1 and Granite's first code models: one head of keys and values for all queries.
ModelDescription read_gpt_bigcode(ModelFields& fields) {
  ModelDescription model = gpt2_like(fields, "gpt_bigcode");
  learn_positions(fields, model);
  model.kv_heads = fields.flag({"multi_query"}, true) ? 1 : model.heads;
  fields.ignore({"num_key_value_heads"}, "multi_query says it");
  return model;
}

/// Every other layer attends to a window.
ModelDescription read_gpt_neo(ModelFields& fields) {
  ModelDescription model = gpt_like("gpt_neo");
  model.hidden = fields.integer({"hidden_size"});
  set_layer_count(model, fields.integer({"num_layers", "num_hidden_layers"}));
  model.heads = fields.integer({"num_heads", "num_attention_heads"}, 16);
  derive_heads(model, model.heads);
  model.ffn_hidden = fields.integer({"intermediate_size"}, 4 * model.hidden);
  model.vocab = fields.integer({"vocab_size"}, 50257);
  model.activation = fields.activation({"activation_function"}, Activation::gelu_tanh);
  model.qkv_bias = false;
  model.position = Position::learned;
  model.max_positions = fields.integer({"max_position_embeddings"}, 2048);
  model.tied_embeddings = fields.flag({"tie_word_embeddings"}, true);
  model.dropout = fields.number({"resid_dropout"}, 0);
  model.attention_dropout = fields.number({"attention_dropout"}, 0);
  const std::int64_t window = fields.integer({"window_size"}, 256);
  const std::optional<std::vector<std::string>> layers = fields.words({"attention_layers"});
  if (layers && layers->size() != model.layers.size()) fields.complain("attention_layers", "has another length than there are layers");
  fields.ignore({"attention_types"}, "the short form of attention_layers");
  set_windows(model, window, false, [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    return layers ? at < layers->size() && (*layers)[at] == "local" : i % 2 == 1;
  });
  return model;
}

/// GPT-J: attention and MLP side by side behind one norm; no biases in attention, one in the head.
ModelDescription read_gptj(ModelFields& fields) {
  ModelDescription model = gpt2_like(fields, "gptj");
  model.parallel_residual = true;
  model.norms_per_layer = 1;
  model.qkv_bias = model.attention_output_bias = false;
  model.head_bias = true;
  model.rotary_dim = fields.integer({"rotary_dim"}, 64);
  fields.ignore({"n_positions", "max_position_embeddings"}, "rotary positions are computed");
  model.tied_embeddings = fields.flag({"tie_word_embeddings"}, false);
  return model;
}

ModelDescription read_codegen(ModelFields& fields) {
  ModelDescription model = read_gptj(fields);
  model.family = "codegen";
  model.fused_qkv = true;
  return model;
}

/// MosaicML's MPT as transformers has it: ALiBi, no biases anywhere.
ModelDescription read_mpt(ModelFields& fields) {
  ModelDescription model = gpt_like("mpt");
  model.fused_qkv = true;
  model.norm_bias = model.qkv_bias = model.attention_output_bias = model.mlp_bias = false;
  model.hidden = fields.integer({"d_model", "hidden_size"});
  set_layer_count(model, fields.integer({"n_layers", "num_hidden_layers"}));
  model.heads = fields.integer({"n_heads", "num_attention_heads"}, 16);
  derive_heads(model, model.heads);
  model.ffn_hidden = model.hidden * fields.integer({"expansion_ratio"}, 4);
  model.vocab = fields.integer({"vocab_size"}, 50368);
  model.activation = Activation::gelu;
  model.position = Position::alibi;
  fields.ignore({"max_seq_len", "learned_pos_emb"}, "transformers' class has no table of positions");
  model.tied_embeddings = fields.flag({"tie_word_embeddings"}, true);
  model.dropout = fields.number({"resid_pdrop"}, 0);
  if (!fields.flag({"no_bias"}, true)) fields.refuse("no_bias", "MPT with biases is not supported");
  if (const config::Value* attention = fields.find({"attn_config"}); attention != nullptr && attention->is_map()) {
    if (const config::Value* alibi = attention->find("alibi"); alibi != nullptr && alibi->text() == "false") fields.refuse("attn_config", "without alibi there is no position encoding here: state the shapes in a model file");
    if (const config::Value* dropout = attention->find("attn_pdrop")) model.attention_dropout = real_number(dropout->text()).value_or(0);
  }
  return model;
}

ModelDescription read_persimmon(ModelFields& fields) {
  ModelDescription model = gpt_neox_like(fields, "persimmon", 16384, 262144, Activation::squared_relu);
  model.qk_norm = fields.flag({"qk_layernorm"}, true);
  model.tied_embeddings = fields.flag({"tie_word_embeddings"}, false);
  model.dropout = fields.number({"hidden_dropout"}, 0);
  model.attention_dropout = fields.number({"attention_dropout"}, 0);
  model.rotary_dim = read_rotary_dim(fields, model, 0.5);
  return model;
}

ModelDescription read_gpt_neox(ModelFields& fields) {
  ModelDescription model = gpt_neox_like(fields, "gpt_neox", 24576, 50432, Activation::gelu);
  model.parallel_residual = fields.flag({"use_parallel_residual"}, true);
  model.qkv_bias = model.attention_output_bias = fields.flag({"attention_bias"}, true);
  model.tied_embeddings = fields.flag({"tie_word_embeddings"}, false);
  model.dropout = fields.number({"hidden_dropout"}, 0);
  model.attention_dropout = fields.number({"attention_dropout"}, 0);
  model.rotary_dim = read_rotary_dim(fields, model, 0.25);
  return model;
}

ModelDescription read_falcon(ModelFields& fields) {
  ModelDescription model = gpt_like("falcon");
  model.fused_qkv = true;
  model.hidden = fields.integer({"hidden_size", "n_embed"});
  set_layer_count(model, fields.integer({"num_hidden_layers", "n_layer"}));
  model.heads = fields.integer({"num_attention_heads", "n_head"}, 71);
  const bool new_architecture = fields.flag({"new_decoder_architecture"}, false);
  const bool multi_query = fields.flag({"multi_query"}, true);
  // 40B and later: the given number; 7B: one, whatever the file gives (the class writes num_kv_heads 71 for
  // it).
  const std::int64_t given = fields.integer({"num_kv_heads", "n_head_kv"}, model.heads);
  derive_heads(model, new_architecture ? given : multi_query ? 1 : given);
  model.ffn_hidden = fields.integer({"ffn_hidden_size"}, 4 * model.hidden);
  model.vocab = fields.integer({"vocab_size"}, 65024);
  model.activation = fields.activation({"activation"}, Activation::gelu);
  const bool bias = fields.flag({"bias"}, false);
  model.qkv_bias = model.attention_output_bias = model.mlp_bias = bias;
  const bool parallel = fields.flag({"parallel_attn"}, true);
  const std::int64_t norms = fields.integer({"num_ln_in_parallel_attn"}, new_architecture ? 2 : 1);
  model.parallel_residual = parallel || new_architecture;
  model.norms_per_layer = !parallel ? 2 : norms == 2 ? 2 : 1;
  const bool alibi = fields.flag({"alibi"}, false);
  model.position = alibi ? Position::alibi : Position::rotary;
  model.rotary_dim = alibi ? 0 : model.head_dim;
  model.tied_embeddings = fields.flag({"tie_word_embeddings"}, true);
  model.dropout = fields.number({"hidden_dropout"}, 0);
  model.attention_dropout = fields.number({"attention_dropout"}, 0);
  return model;
}

ModelDescription read_opt(ModelFields& fields) {
  ModelDescription model = gpt_like("opt");
  model.hidden = fields.integer({"hidden_size"});
  set_layer_count(model, fields.integer({"num_hidden_layers"}));
  model.heads = fields.integer({"num_attention_heads"}, 12);
  derive_heads(model, model.heads);
  model.ffn_hidden = fields.integer({"ffn_dim"}, 3072);
  model.vocab = fields.integer({"vocab_size"}, 50272);
  model.position = Position::learned;
  model.max_positions =
      fields.integer({"max_position_embeddings"}, 2048) + 2;  // two rows before the first position
  const std::int64_t width = fields.integer({"word_embed_proj_dim"}, model.hidden);
  model.embedding_width = width == model.hidden ? 0 : width;
  const bool norm_before = fields.flag({"do_layer_norm_before"}, true);
  const bool removed = fields.flag({"_remove_final_layer_norm"}, false);
  model.final_norm = norm_before && !removed;
  model.activation = fields.activation({"activation_function"}, Activation::relu);
  const bool bias = fields.flag({"enable_bias"}, true);
  model.qkv_bias = model.attention_output_bias = model.mlp_bias = bias;
  if (!fields.flag({"layer_norm_elementwise_affine"}, true))
    fields.refuse("layer_norm_elementwise_affine", "norms without weights are not supported");
  model.tied_embeddings = fields.flag({"tie_word_embeddings"}, true);
  model.dropout = fields.number({"dropout"}, 0.1);
  model.attention_dropout = fields.number({"attention_dropout"}, 0);
  return model;
}

ModelDescription read_bloom(ModelFields& fields) {
  ModelDescription model = gpt_like("bloom");
  model.fused_qkv = true;
  model.hidden = fields.integer({"hidden_size", "n_embed"});
  set_layer_count(model, fields.integer({"n_layer", "num_hidden_layers"}));
  model.heads = fields.integer({"n_head", "num_attention_heads"}, 8);
  derive_heads(model, model.heads);
  model.ffn_hidden = 4 * model.hidden;
  fields.ignore({"n_inner"}, "BLOOM's class always takes 4 * hidden");
  model.vocab = fields.integer({"vocab_size"}, 250880);
  model.activation = Activation::gelu_tanh;
  model.position = Position::alibi;
  model.embedding_norm = true;
  model.tied_embeddings = fields.flag({"tie_word_embeddings"}, true);
  model.dropout = fields.number({"hidden_dropout"}, 0);
  model.attention_dropout = fields.number({"attention_dropout"}, 0);
  return model;
}

ModelDescription read_phi(ModelFields& fields) {
  ModelDescription model = gpt_like("phi");
  model.hidden = fields.integer({"hidden_size", "n_embd"});
  set_layer_count(model, fields.integer({"num_hidden_layers", "n_layer"}));
  model.heads = fields.integer({"num_attention_heads", "n_head"}, 32);
  derive_heads(model, fields.integer({"num_key_value_heads", "n_head_kv"}, model.heads));
  model.ffn_hidden = fields.integer({"intermediate_size", "n_inner"}, 4 * model.hidden);
  model.vocab = fields.integer({"vocab_size"}, 51200);
  model.activation = fields.activation({"hidden_act", "activation_function"}, Activation::gelu_tanh);
  model.parallel_residual = true;
  model.norms_per_layer = 1;
  model.head_bias = true;
  model.qk_norm = fields.flag({"qk_layernorm"}, false);
  model.tied_embeddings = fields.flag({"tie_word_embeddings"}, false);
  model.dropout = fields.number({"resid_pdrop"}, 0);
  model.attention_dropout = fields.number({"attention_dropout", "attn_pdrop"}, 0);
  model.rotary_dim = read_rotary_dim(fields, model, 0.5);
  return model;
}

}  // namespace rehearse::model
