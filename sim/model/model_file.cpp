#include "sim/model/model_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/core/error.h"
#include "sim/core/suggestion.h"
#include "sim/model/describe.h"
#include "sim/model/model_fields.h"
#include "sim/model/shapes.h"

namespace rehearse::model {

namespace {

/// One of an enum's names; the mistake lists them all.
template <typename Enum, std::size_t n>
Enum choice(ModelFields& fields, const char* key, Enum fallback, const Enum (&all)[n]) {
  const config::Value* value = fields.find({key});
  if (value == nullptr) return fallback;
  std::vector<std::string> names;
  for (const Enum candidate : all) {
    if (value->text() == name_of(candidate)) return candidate;
    names.emplace_back(name_of(candidate));
  }
  fields.complain(key, fmt::format("\"{}\" is unknown", value->text()),
                  fmt::format("Choose one of {}", fmt::join(names, ", ")));
  return fallback;
}

/// An optional whole number.
std::optional<std::int64_t> maybe(ModelFields& fields, const char* key) {
  if (fields.find({key}) == nullptr) return std::nullopt;
  return fields.integer({key});
}

ModelFields nested(ModelFields& fields, const char* key) {
  const config::Value* value = fields.find({key});
  if (value != nullptr && !value->is_map()) fields.complain(key, "is not a map");
  return ModelFields(value != nullptr ? *value : config::Value());
}

/// The keys of a map of the normal form: "" is the model's own, "experts." one within it.
std::vector<std::string> keys_below(const std::string& map) {
  std::vector<std::string> names;
  for (const ModelKey& key : model_keys())
    if (key.name.starts_with(map) && key.name.find('.', map.size()) == std::string::npos) names.push_back(key.name.substr(map.size()));
  return names;
}

void complain_about_unknown_keys(ModelFields& fields, std::vector<Diagnostic>& mistakes, const std::string& map = "") {
  const std::vector<std::string> names = keys_below(map);
  const ImportReport report = fields.take_report([](const std::string&) -> const char* { return nullptr; });
  for (const ImportNote& note : report.not_understood) {
    const std::size_t dot = note.key.rfind('.');
    std::string fix = did_you_mean(note.key.substr(dot == std::string::npos ? 0 : dot + 1), names);
    if (!map.empty()) fix += fmt::format("{}Valid: {}", fix.empty() ? "" : " ", fmt::join(names, ", "));
    mistakes.push_back({note.at, note.key, "unknown key", std::move(fix), ""});
  }
  for (Diagnostic& mistake : fields.take_mistakes()) mistakes.push_back(std::move(mistake));
}

void read_experts(ModelFields fields, ModelDescription& model, std::vector<Diagnostic>& mistakes) {
  if (fields.object().is_null()) return;
  Experts& moe = model.experts;
  moe.experts = fields.integer({"count"});
  moe.top_k = fields.integer({"top_k"}, 1);
  moe.ffn_hidden = fields.integer({"ffn_hidden"}, model.ffn_hidden);
  moe.shared_ffn_hidden = fields.integer({"shared_ffn_hidden"}, 0);
  moe.latent = fields.integer({"latent"}, 0);
  moe.shared_gate = fields.flag({"shared_gate"}, false);
  moe.router_bias = fields.flag({"router_bias"}, false);
  moe.groups = fields.integer({"groups"}, 0);
  moe.groups_per_token = fields.integer({"groups_per_token"}, 0);
  const std::int64_t dense_first = fields.integer({"dense_first"}, 0);
  const std::int64_t every = std::max<std::int64_t>(1, fields.integer({"every"}, 1));
  for (std::int64_t i = 0; i < model.layer_count(); ++i)
    model.layers[static_cast<std::size_t>(i)].moe = i >= dense_first && (i + 1) % every == 0;
  complain_about_unknown_keys(fields, mistakes, "experts.");
}

void read_latent_attention(ModelFields fields, ModelDescription& model, std::vector<Diagnostic>& mistakes) {
  if (fields.object().is_null()) return;
  LatentAttention& mla = model.latent;
  mla.q_lora_rank = fields.integer({"q_lora_rank"}, 0);
  mla.kv_lora_rank = fields.integer({"kv_lora_rank"});
  mla.qk_nope_head_dim = fields.integer({"qk_nope_head_dim"});
  mla.qk_rope_head_dim = fields.integer({"qk_rope_head_dim"});
  mla.v_head_dim = fields.integer({"v_head_dim"});
  model.head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim;
  model.rotary_dim = mla.qk_rope_head_dim;
  complain_about_unknown_keys(fields, mistakes, "latent_attention.");
}

/// windows: {size: 4096, pattern: LG}: one letter per layer, repeated; L local, G global (full attention), N global without
/// positions. Without an L there is no size.
void read_windows(ModelFields fields, ModelDescription& model, std::vector<Diagnostic>& mistakes) {
  if (fields.object().is_null()) return;
  const std::string pattern = fields.word({"pattern"}, "L");
  const bool any_local = pattern.find('L') != std::string::npos;
  const std::int64_t size = any_local ? fields.integer({"size"}) : fields.integer({"size"}, 0);
  const bool chunked = fields.flag({"chunked"}, false);
  if (any_local && size < 1) fields.complain("size", "must be at least 1 token");
  if (pattern.empty() || pattern.find_first_not_of("LGN") != std::string::npos) {
    fields.complain("pattern", fmt::format("\"{}\" is not made of L (local), G (global) and N (global, no positions)", pattern));
  } else {
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
      Layer& layer = model.layers[i];
      const char letter = pattern[i % pattern.size()];
      const bool local = letter == 'L';
      layer.window = local ? size : 0;
      layer.chunked = local && chunked;
      layer.rotary = letter != 'N';
    }
  }
  complain_about_unknown_keys(fields, mistakes, "windows.");
}

void read_state_space(ModelFields fields, ModelDescription& model, std::vector<Diagnostic>& mistakes) {
  if (fields.object().is_null()) return;
  StateSpace& mixer = model.state_space;
  mixer.heads = fields.integer({"heads"});
  mixer.head_dim = fields.integer({"head_dim"}, 64);
  mixer.groups = fields.integer({"groups"}, 1);
  mixer.state = fields.integer({"state"}, 128);
  mixer.convolution = fields.integer({"convolution"}, 4);
  mixer.chunk = fields.integer({"chunk"}, 256);
  mixer.convolution_bias = fields.flag({"convolution_bias"}, true);
  mixer.norm = fields.flag({"norm"}, true);
  complain_about_unknown_keys(fields, mistakes, "state_space.");
}

void read_delta_net(ModelFields fields, ModelDescription& model, std::vector<Diagnostic>& mistakes) {
  if (fields.object().is_null()) return;
  DeltaNet& mixer = model.delta_net;
  mixer.value_heads = fields.integer({"value_heads"});
  mixer.key_heads = fields.integer({"key_heads"}, mixer.value_heads);
  mixer.key_dim = fields.integer({"key_dim"}, 128);
  mixer.value_dim = fields.integer({"value_dim"}, 128);
  mixer.convolution = fields.integer({"convolution"}, 4);
  complain_about_unknown_keys(fields, mistakes, "delta_net.");
}

void read_layer_pattern(ModelFields& fields, ModelDescription& model) {
  if (fields.find({"hybrid_pattern"}) == nullptr) return;
  const std::string pattern = fields.word({"hybrid_pattern"}, "T");
  const std::string problem = apply_layer_pattern(pattern, model);
  if (!problem.empty()) fields.complain("hybrid_pattern", problem, "Write T (attention and MLP or experts), S (a state-space mixer in place of attention), D (a delta-rule mixer), or parts alone: M (state-space), G (delta rule), * (attention), - (MLP), E (experts)");
}

void read_biases(ModelFields& fields, ModelDescription& model) {
  const std::optional<std::vector<std::string>> list = fields.words({"biases"});
  if (!list) return;
  model.qkv_bias = model.attention_output_bias = model.mlp_bias = model.head_bias = false;
  for (const std::string& bias : *list) {
    if (bias == "qkv")
      model.qkv_bias = true;
    else if (bias == "attention_output")
      model.attention_output_bias = true;
    else if (bias == "mlp")
      model.mlp_bias = true;
    else if (bias == "head")
      model.head_bias = true;
    else
      fields.complain("biases", fmt::format("\"{}\" is unknown", bias),
                      "Choose from qkv, attention_output, mlp, head");
  }
}

void read_learned_scales(ModelFields& fields, ModelDescription& model) {
  for (const std::string& scaled : fields.words({"learned_scales"}).value_or(std::vector<std::string>{})) {
    if (scaled == "branches")
      model.scales.branches = true;
    else if (scaled == "embedding")
      model.scales.embedding = true;
    else if (scaled == "queries")
      model.scales.queries = true;
    else
      fields.complain("learned_scales", fmt::format("\"{}\" is unknown", scaled), "Choose from branches, embedding, queries");
  }
}

/// A size that a model cannot do without. One below 1 is named here, with its place; nothing that follows from it is said.
std::int64_t needed_size(ModelFields& fields, const char* name) {
  const std::int64_t size = fields.integer({name});
  const config::Value* given = fields.find({name});
  if (given != nullptr && given->is_scalar() && whole_number(given->text()).value_or(1) < 1) fields.wrong(*given, "at least 1");
  return size;
}

Shapes read_shapes(ModelFields& fields, const std::string& name) {
  Shapes shapes;
  shapes.name = name;
  const std::string style = fields.word({"style"}, "llama");
  if (style != "llama" && style != "gpt")
    fields.complain("style", fmt::format("\"{}\" is unknown", style), "Choose llama or gpt");
  shapes.layers = needed_size(fields, "layers");
  constexpr std::int64_t kMostLayers = 10'000;  // as problems_of() has it; each is made before that is asked
  if (shapes.layers > kMostLayers) {
    fields.wrong(*fields.find({"layers"}), "at most 10000 (no transformer is this large)");
    shapes.layers = kMostLayers;
  }
  shapes.hidden = needed_size(fields, "hidden");
  shapes.heads = needed_size(fields, "heads");
  shapes.vocab = needed_size(fields, "vocab");
  shapes.kv_heads = maybe(fields, "kv_heads");
  shapes.head_dim = maybe(fields, "head_dim");
  shapes.gated = style == "llama";
  // Llama's rule for a missing width would be applied to a two-matrix MLP when only `gated_mlp` is restated.
  shapes.ffn_hidden = maybe(fields, "ffn_hidden");
  shapes.max_positions = fields.integer({"max_positions"}, 0);
  if (fields.find({"tied_embeddings"}) != nullptr) shapes.tied = fields.flag({"tied_embeddings"}, false);
  return shapes;
}

void restate(ModelFields& fields, ModelDescription& model) {
  constexpr Norm norms[] = {Norm::layer_norm, Norm::rms_norm};
  constexpr Position positions[] = {Position::rotary, Position::learned, Position::alibi, Position::none};
  constexpr Activation activations[] = {Activation::gelu, Activation::gelu_tanh, Activation::silu,
                                        Activation::relu, Activation::squared_relu};
  model.family = fields.word({"family"}, model.family);
  model.gated_mlp = fields.flag({"gated_mlp"}, model.gated_mlp);
  model.activation = choice(fields, "activation", model.activation, activations);
  model.norm = choice(fields, "norm", model.norm, norms);
  model.norm_bias = fields.flag({"norm_bias"}, model.norm_bias);
  model.norm_weight = fields.flag({"norm_weight"}, true);
  model.norms_per_layer = static_cast<int>(
      std::clamp<std::int64_t>(fields.integer({"norms_per_layer"}, model.norms_per_layer), -1, 99));
  model.norms_after = fields.flag({"norms_after"}, false);
  model.embedding_norm = fields.flag({"embedding_norm"}, false);
  model.final_norm = fields.flag({"final_norm"}, true);
  model.qk_norm = fields.flag({"qk_norm"}, false);
  model.qk_norm_weight = fields.flag({"qk_norm_weight"}, true);
  model.joint_qk_norm = fields.flag({"joint_qk_norm"}, false);
  model.parallel_residual = fields.flag({"parallel_residual"}, false);
  model.position = choice(fields, "position", model.position, positions);
  if (model.position != Position::learned) model.max_positions = 0;
  model.rotary_dim =
      fields.integer({"rotary_dim"}, model.position == Position::rotary ? model.head_dim : std::int64_t{0});
  read_biases(fields, model);
  model.fused_qkv = fields.flag({"fused_qkv"}, false);
  model.norm_weight_in_fp32 = fields.flag({"norm_weight_in_fp32"}, false);
  model.attention_gate = fields.flag({"attention_gate"}, false);
  model.attention_sinks = fields.flag({"attention_sinks"}, false);
  model.clamped_activation = fields.flag({"clamped_activation"}, false);
  model.softcapped_logits = fields.flag({"softcapped_logits"}, false);
  read_learned_scales(fields, model);
  model.scaled_embedding = fields.flag({"scaled_embedding"}, false);
  model.embedding_width = fields.integer({"embedding_width"}, 0);
  model.mtp_layers = fields.integer({"mtp_layers"}, 0);
  model.mtp_repeated = fields.flag({"mtp_repeated"}, false);
  model.dropout = fields.number({"dropout"}, 0);
  model.attention_dropout = fields.number({"attention_dropout"}, 0);
}

}  // namespace

ModelDescription read_model(const config::Value& map, const std::string& name) {
  if (!map.is_map())
    throw ConfigError(map.diagnostic("is not a model", "Write {layers: ..., hidden: ..., ...}"));
  ModelFields fields(map);
  std::vector<Diagnostic> mistakes;
  const std::string stated = fields.word({"name"}, name);
  const Shapes shapes = read_shapes(fields, stated);
  ModelDescription model = make_from_shapes(shapes);
  model.max_positions = shapes.max_positions;
  restate(fields, model);
  read_latent_attention(nested(fields, "latent_attention"), model, mistakes);
  read_windows(nested(fields, "windows"), model, mistakes);
  read_experts(nested(fields, "experts"), model, mistakes);
  read_state_space(nested(fields, "state_space"), model, mistakes);
  read_delta_net(nested(fields, "delta_net"), model, mistakes);
  read_layer_pattern(fields, model);
  fields.ignore({"source", "aliases", "parameters", "published", "note"}, "documentation");
  complain_about_unknown_keys(fields, mistakes);
  if (mistakes.empty())
    for (const std::string& problem : problems_of(model)) {
      const config::Value* key = map.find(problem.substr(0, problem.find(' ')));  // a problem begins with the size that it is about
      mistakes.push_back((key != nullptr ? *key : map).diagnostic(problem));
    }
  if (!mistakes.empty()) throw ConfigError(std::move(mistakes));
  return model;
}

const std::vector<ModelKey>& model_keys() {
  static const std::vector<ModelKey> keys = {
      {"name", "what results call it"},
      {"style",
       "llama: RMSNorm, rotary, gated SiLU, no biases, untied; gpt: LayerNorm, learned positions, GELU, "
       "biases, tied"},
      {"layers", "number of transformer layers"},
      {"hidden", "width of the residual stream"},
      {"heads", "query heads"},
      {"kv_heads", "key/value heads; default: heads"},
      {"head_dim", "width of one head; default: hidden / heads"},
      {"ffn_hidden", "width of the dense MLP"},
      {"vocab", "rows of the embedding, without a framework's padding"},
      {"max_positions", "rows of a learned position table"},
      {"tied_embeddings", "the head shares the embedding's matrix"},
      {"family", "label for profiles"},
      {"gated_mlp", "three matrices instead of two"},
      {"activation", "gelu, gelu_tanh, silu, relu or squared_relu"},
      {"norm", "layer_norm or rms_norm"},
      {"norm_bias", "norms have a bias"},
      {"norm_weight", "false: norms learn nothing"},
      {"norm_weight_in_fp32", "norms multiply by their weight, or one plus it, before they round to the stream's format (Gemma, Qwen3-Next)"},
      {"norms_per_layer", "1 (parallel residual), 2 or 4"},
      {"norms_after", "the two norms follow attention and MLP instead of coming before them"},
      {"embedding_norm", "a norm after the embedding"},
      {"final_norm", "a norm before the head"},
      {"qk_norm", "per-head norms on q and k"},
      {"qk_norm_weight", "false: those norms have no weight"},
      {"joint_qk_norm", "one norm over all heads together instead of one per head"},
      {"parallel_residual", "attention and MLP read the same input"},
      {"position", "rotary, learned, alibi or none"},
      {"rotary_dim", "rotated part of a head; default: all of it"},
      {"biases", "list from qkv, attention_output, mlp, head"},
      {"fused_qkv", "the published code computes queries, keys and values by one product"},
      {"attention_gate", "attention's output times the sigmoid of a gate as wide, which the query product makes too (Qwen3-Next)"},
      {"attention_sinks", "one learned logit per head"},
      {"clamped_activation", "the operands of the experts' gated activation are clamped first"},
      {"softcapped_logits", "logits go through a scaled tanh before the loss"},
      {"learned_scales",
       "list from branches (their outputs times a vector), embedding (each layer's input is mixed with the embedding's output), "
       "queries (a factor per head)"},
      {"scaled_embedding", "the embedding is multiplied by a constant"},
      {"embedding_width", "width of the token embedding where it is not hidden"},
      {"windows", "attention that does not see the whole sequence; default: every layer does"},
      {"windows.size", "tokens that a local layer sees"},
      {"windows.pattern", "a letter per layer, repeated: L local, G global, N global without positions; default: L"},
      {"windows.chunked", "true: blocks of so many tokens that see nothing of each other, not a window that slides"},
      {"experts", "mixture of experts in place of the dense MLP; default: none"},
      {"experts.count", "routed experts of a layer"},
      {"experts.top_k", "of those, how many a token goes to; default: 1"},
      {"experts.ffn_hidden", "width of one expert; default: ffn_hidden"},
      {"experts.shared_ffn_hidden", "width of the shared experts together, which every token goes through; default: none"},
      {"experts.latent", "width that tokens are brought to before they go to routed experts, and back from after them; default: they go as they are"},
      {"experts.shared_gate", "the shared experts' output is scaled by a gate of its own (Qwen2)"},
      {"experts.router_bias", "the router has a bias"},
      {"experts.groups", "groups of experts for group-limited routing (DeepSeek); default: none"},
      {"experts.groups_per_token", "of those, how many a token may choose from"},
      {"experts.dense_first", "layers at the start that keep a dense MLP; default: 0"},
      {"experts.every", "from there on, every n-th layer has experts; default: 1"},
      {"state_space", "state-space mixers (Mamba-2), which layers have as hybrid_pattern says; default: none"},
      {"state_space.heads", "heads of the scan"},
      {"state_space.head_dim", "width of one of them; default: 64"},
      {"state_space.groups", "groups of heads that share their input and output maps; default: 1"},
      {"state_space.state", "values of state per channel; default: 128"},
      {"state_space.convolution", "taps of the causal convolution; default: 4"},
      {"state_space.chunk", "tokens that the scan computes as one block; default: 256"},
      {"state_space.convolution_bias", "the convolution has a bias; default: true"},
      {"state_space.norm", "a gated norm before the output product; default: true"},
      {"delta_net", "gated delta rules (Gated DeltaNet: Qwen3-Next, Qwen 3.5), which layers have as hybrid_pattern says; default: none"},
      {"delta_net.value_heads", "heads of the values, each with a state of its own"},
      {"delta_net.key_heads", "heads of queries and of keys; default: value_heads"},
      {"delta_net.key_dim", "width of a head's queries and keys; default: 128"},
      {"delta_net.value_dim", "width of a head's values; default: 128"},
      {"delta_net.convolution", "taps of the causal convolution; default: 4"},
      {"hybrid_pattern",
       "a letter per layer, repeated: T attention and MLP or experts, S a state-space mixer in place of attention, D a delta-rule mixer; of one part "
       "alone: M a state-space mixer, G a delta-rule mixer, * attention, - an MLP, E experts; default: T"},
      {"latent_attention", "multi-head latent attention (DeepSeek); default: none"},
      {"latent_attention.q_lora_rank", "width that queries are compressed to; default: they are not"},
      {"latent_attention.kv_lora_rank", "width that keys and values are compressed to"},
      {"latent_attention.qk_nope_head_dim", "part of a head without rotary positions"},
      {"latent_attention.qk_rope_head_dim", "part of a head with rotary positions"},
      {"latent_attention.v_head_dim", "width of a head's values"},
      {"mtp_layers", "multi-token-prediction layers beyond `layers`"},
      {"mtp_repeated", "the multi-token-prediction layers are one, run again for each further token (Megatron's --mtp-use-repeated-layer)"},
      {"dropout", "residual dropout probability"},
      {"attention_dropout", "attention dropout probability"},
  };
  return keys;
}

}  // namespace rehearse::model
