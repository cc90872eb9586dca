// The model that Megatron's arguments describe. Defaults: megatron/training/arguments.py, core/transformer_config.py.
#include <fmt/core.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "sim/config/units.h"
#include "sim/importers/hybrid_pattern.h"
#include "sim/importers/list_expression.h"
#include "sim/importers/megatron_parts.h"
#include "sim/importers/shell_words.h"
#include "sim/importers/version.h"
#include "sim/model/presets.h"

namespace rehearse::importers {
namespace {

using config::positive;

/// As it is written on a command line.
std::string dashed(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

/// Every argument that Model reads, beside the batch's own sequence length and the tokenizer's. Where the model is not theirs to tell, none counts.
constexpr const char* kModelArguments[] = {
    "num_layers", "encoder_num_layers", "hidden_size", "num_attention_heads", "kv_channels", "ffn_hidden_size", "num_query_groups", "group_query_attention",
    "hybrid_layer_pattern", "hybrid_override_pattern", "mamba_state_dim", "mamba_head_dim", "mamba_num_groups", "mamba_num_heads",
    "vocab_size", "padded_vocab_size", "make_vocab_size_divisible_by", "untie_embeddings_and_output_weights",
    "max_position_embeddings", "position_embedding_type", "use_rotary_position_embeddings", "rotary_percent",
    "normalization", "qk_layernorm", "qk_l2_norm", "add_bias_linear", "disable_bias_linear", "add_qkv_bias",
    "swiglu", "squared_relu", "quick_geglu", "openai_gelu", "gated_linear_unit", "activation_func", "activation_func_clamp_value",
    "hidden_dropout", "attention_dropout", "softmax_type", "window_size", "window_attn_skip_freq", "attention_output_gate",
    "mtp_num_layers", "mtp_use_repeated_layer",
    "num_experts", "num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_shared_expert_gate", "moe_layer_freq", "moe_latent_size",
    "moe_router_num_groups", "moe_router_group_topk",
    "multi_latent_attention", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim",
    "experimental_attention_variant", "linear_attention_freq", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim",
};

class Model {
 public:
  Model(Importer& in, const MegatronLayer& layer) : in_(in), layer_(layer) {}

  void read() {
    read_routing();
    if (stated_elsewhere()) return;
    const config::Limits range = config::between(1, 1e9);
    const auto hybrid = read_hybrid_pattern();
    const auto layers = hybrid ? hybrid : size({"num_layers", "encoder_num_layers"}, "model.layers", config::between(1, 10000));
    const auto hidden = size({"hidden_size"}, "model.hidden", range);
    const auto heads = size({"num_attention_heads"}, "model.heads", range);
    if (!layers && !in_.has("num_layers") && !in_.has("hidden_size")) {  // the model is given with the scenario, or its absence is said there
      in_.remark("model", "the arguments name no sizes");
      leave_all("the arguments name no sizes: the scenario's model decides", heads ? "num_attention_heads" : "");
      return;
    }
    for (const auto& [value, key] : {std::pair{layers, "num_layers"}, {hidden, "hidden_size"}, {heads, "num_attention_heads"}})
      if (!value) in_.complain(key, "is not among the arguments (Megatron has no default for it)", fmt::format("Add --{}, or give the scenario a model", dashed(key)));
    if (!in_.stated("model.style")) in_.assume("model.style", "gpt", "Megatron's defaults, changed by the arguments");
    if (!in_.stated("model.name")) in_.assume("model.name", "megatron", "the arguments do not name the model");
    read_widths(hidden.value_or(1), heads.value_or(1));
    read_vocabulary();
    read_style(hidden.value_or(1), heads.value_or(1));
    read_windows(layers.value_or(1));
    read_experts(layers.value_or(1));
    read_latent_attention();
    if (hybrid && pattern_.find('M') != std::string::npos) read_state_space(hidden.value_or(1));
    if (pattern_.find('G') != std::string::npos || read_delta_layers(layers.value_or(1))) read_delta_net();
    if (const auto gated = in_.flag("attention_output_gate")) in_.set("model.attention_gate", *gated ? "true" : "false", "attention_output_gate");
  }

 private:
  /// How many layers a hybrid model has.
  std::optional<std::int64_t> read_hybrid_pattern() {
    const char* name = in_.has("hybrid_layer_pattern") ? "hybrid_layer_pattern" : "hybrid_override_pattern";
    const auto text = in_.word(name);
    if (!text || *text == "None") return std::nullopt;
    const HybridPattern pattern = hybrid_pattern(*text);
    if (!pattern.problem.empty()) {
      in_.refuse(name, pattern.problem);
      return std::max<std::int64_t>(1, static_cast<std::int64_t>(pattern.letters.size()));   // num_layers is not what is missing
    }
    const auto layers = static_cast<std::int64_t>(pattern.letters.size());
    // Source: megatron/training/arguments.py: the pattern "always overrides --num-layers when both are present".
    if (const auto stated = in_.integer("num_layers", config::between(1, 10000)); stated && *stated != layers) in_.ignore("num_layers", fmt::format("{} has {} layers, which count", name, layers));
    in_.set("model.layers", std::to_string(layers), name);
    in_.set("model.hybrid_pattern", pattern.letters, name);
    pattern_ = pattern.letters;
    if (pattern.predictions > 0) read_predictions(pattern.predictions, name);
    return layers;
  }

  /// Defaults: megatron/core/transformer/transformer_config.py and ssm/mamba_mixer.py (expand 2, chunks of 128).
  void read_state_space(std::int64_t hidden) {
    const std::int64_t head = in_.integer("mamba_head_dim", positive).value_or(64);
    fact("model.state_space.head_dim", std::to_string(head), "mamba_head_dim");
    fact("model.state_space.heads", std::to_string(in_.integer("mamba_num_heads", positive).value_or(std::max<std::int64_t>(1, 2 * hidden / head))), "mamba_num_heads");
    fact("model.state_space.groups", std::to_string(in_.integer("mamba_num_groups", positive).value_or(8)), "mamba_num_groups");
    fact("model.state_space.state", std::to_string(in_.integer("mamba_state_dim", positive).value_or(128)), "mamba_state_dim");
    in_.fragment().set("model.state_space.chunk", "128", {in_.root().place().source, 0, 0});
  }

  /// Which layers have a gated delta rule in place of attention: linear_attention_freq is N (every N-th has attention) or a list with 1 for the others.
  /// Source: megatron/core/models/gpt/experimental_attention_variant_module_specs.py, get_linear_attention_pattern. False: none has.
  bool read_delta_layers(std::int64_t layers) {
    constexpr const char* kVariant = "experimental_attention_variant";
    constexpr const char* kFrequency = "linear_attention_freq";
    const auto variant = in_.word(kVariant);
    if (!variant || (*variant != "gdn" && *variant != "gated_delta_net")) return false;
    in_.use(kVariant, "a gated delta rule in place of attention");
    const config::Value* v = in_.find(kFrequency);
    if (v == nullptr) {
      in_.complain(kVariant, "does not say in which layers", "Add --linear-attention-freq, as Megatron wants");
      return false;
    }
    std::string letters;
    if (const auto every = v->is_scalar() ? config::parse_integer(v->text()).value : std::nullopt) {
      if (*every < 1) in_.complain(kFrequency, fmt::format("{} is not positive", *every), "Write 4 for attention in every fourth layer");
      for (std::int64_t i = 1; *every > 0 && i <= layers; ++i) letters += i % *every == 0 ? 'T' : 'D';
    } else if (const auto pattern = pattern_of(*v)) {
      for (const std::int64_t linear : *pattern) letters += linear != 0 ? 'D' : 'T';
      if (static_cast<std::int64_t>(letters.size()) != layers) in_.complain(kFrequency, fmt::format("describes {} layers, but the model has {}", letters.size(), layers));
    } else {
      in_.complain(kFrequency, fmt::format("'{}' is neither a number nor a list of numbers", v->text()), "Write 4, or ([1]*3+[0])*12 in quotes");
    }
    if (letters.find('D') == std::string::npos) return false;
    in_.set("model.hybrid_pattern", letters, kFrequency);
    return true;
  }

  /// Defaults: megatron/core/transformer/transformer_config.py (linear_*).
  void read_delta_net() {
    const auto of = [&](const char* key, const char* ours, std::int64_t otherwise) { fact(ours, std::to_string(in_.integer(key, positive).value_or(otherwise)), key); };
    of("linear_num_key_heads", "model.delta_net.key_heads", 16);
    of("linear_num_value_heads", "model.delta_net.value_heads", 32);
    of("linear_key_head_dim", "model.delta_net.key_dim", 128);
    of("linear_value_head_dim", "model.delta_net.value_dim", 128);
    of("linear_conv_kernel_dim", "model.delta_net.convolution", 4);
  }

  /// Says of all that the arguments state of a model why it does not count.
  void leave_all(const char* why, std::string_view but = "") {
    for (const std::string_view key : kModelArguments)
      if (key != but && in_.has(key)) in_.use(key, why);
  }

  /// The scenario's own model stands above the arguments' sizes, unless it restates some of them in a map.
  bool stated_elsewhere() {
    const config::Value* model = in_.context().scenario.find("model");
    if (model == nullptr || (model->is_map() && model->find("from") == nullptr && model->find("preset") == nullptr)) return false;
    leave_all("the model of the scenario stands in its place");
    return true;
  }

  std::optional<std::int64_t> size(std::initializer_list<const char*> names, const char* ours, const config::Limits& limits) {
    for (const char* name : names)
      if (const auto v = in_.integer_or_stated(name, ours, limits)) {
        if (!in_.is_open(name)) in_.set(ours, std::to_string(*v), name);
        return v;
      }
    return std::nullopt;
  }

  void read_widths(std::int64_t hidden, std::int64_t heads) {
    const bool dump = in_.has("num_query_groups") && !in_.has("group_query_attention");
    const bool grouped = in_.flag("group_query_attention").value_or(dump);
    if (grouped) size({"num_query_groups"}, "model.kv_heads", positive);
    else if (in_.has("num_query_groups")) in_.use("num_query_groups", "group_query_attention is not set: every head has its own keys");
    head_dim_ = size({"kv_channels"}, "model.head_dim", config::between(1, 1 << 20)).value_or(hidden / heads);
    if (!size({"ffn_hidden_size"}, "model.ffn_hidden", positive)) {
      const std::int64_t width = layer_.gated ? 4 * hidden * 2 / 3 / 64 * 64 : 4 * hidden;
      in_.assume("model.ffn_hidden", std::to_string(std::max<std::int64_t>(1, width)), layer_.gated ? "two thirds of 4 x hidden_size, a multiple of 64" : "4 x hidden_size");
    }
  }

  void read_vocabulary() {
    const std::string tokenizer = in_.word("tokenizer_type").value_or("");
    if (tokenizer.starts_with("BertWordPiece")) return in_.refuse("tokenizer_type", "a model with BERT's tokenizer (BERT, T5), which is no decoder of text alone,");
    if (const auto multiple = in_.integer("make_vocab_size_divisible_by", positive); multiple && *multiple != 128 && !in_.has("padded_vocab_size"))
      in_.ignore("make_vocab_size_divisible_by", "the vocabulary is padded to a multiple of 128 x the tensor-parallel degree in the simulation");
    if (size({"padded_vocab_size"}, "model.vocab", positive)) {
      if (in_.has("vocab_size")) in_.use("vocab_size", "padded_vocab_size is the table's size");
      return;
    }
    if (tokenizer == "NullTokenizer" && read_null_vocabulary()) return;
    if (size({"vocab_size"}, "model.vocab", positive) || in_.stated("model.vocab")) return;
    if (tokenizer.empty() && in_.has("merge_file")) in_.assume("model.vocab", "50257", "a merge file belongs to GPT-2's tokenizer");
    else if (tokenizer == "GPT2BPETokenizer") in_.set("model.vocab", "50257", "tokenizer_type", "GPT-2's vocabulary");
    else if (tokenizer == "Llama2Tokenizer") in_.set("model.vocab", "32000", "tokenizer_type", "Llama 2's vocabulary");
    else if (const auto named = vocabulary_of(in_.word("tokenizer_model").value_or(""))) in_.set("model.vocab", std::to_string(*named), "tokenizer_model", "the table of that model");
    else in_.complain("vocab_size", "the vocabulary's size is not among the arguments (the tokenizer's files decide)", "Set model.vocab in the scenario");
  }

  /// One more than it was told, for the end of documents, until Megatron-Core 0.18 (NVIDIA/Megatron-LM c9dfe34798).
  bool read_null_vocabulary() {
    if (at_least_version(in_.context().version, 0, 18, 0)) return false;
    const auto size = in_.integer("vocab_size", config::between(1, 1e9));
    if (size) in_.set("model.vocab", std::to_string(*size + 1), "vocab_size", "NullTokenizer adds one before Megatron-Core 0.18");
    return size.has_value();
  }

  /// HuggingFaceTokenizer may name a model of the hub whose sizes are known: meta-llama/Meta-Llama-3-8B.
  std::optional<std::int64_t> vocabulary_of(const std::string& tokenizer_model) const {
    const auto preset = tokenizer_model.find('$') == std::string::npos ? model::preset_for(tokenizer_model) : std::nullopt;
    return preset ? std::optional(model::load_preset(*preset).vocab) : std::nullopt;
  }

  void read_style(std::int64_t hidden, std::int64_t heads) {
    const bool squared = in_.flag("squared_relu").value_or(false), quick = in_.flag("quick_geglu").value_or(false), tanh = in_.flag("openai_gelu").value_or(false);
    const std::string function = in_.word("activation_func").value_or("");
    const bool gated = layer_.gated || quick;
    const bool silu = in_.flag("swiglu").value_or(false) || function.find("silu") != std::string::npos || function == "swiglu";
    const char* by = in_.has("swiglu") ? "swiglu" : squared ? "squared_relu" : quick ? "quick_geglu" : tanh ? "openai_gelu" : in_.has("activation_func") ? "activation_func" : "gated_linear_unit";
    fact("model.gated_mlp", gated ? "true" : "false", by);
    fact("model.activation", silu ? "silu" : squared || function.find("squared_relu") != std::string::npos ? "squared_relu" : quick || tanh ? "gelu_tanh" : "gelu", by);
    const std::string norm = in_.word("normalization").value_or("LayerNorm");
    if (norm != "LayerNorm" && norm != "RMSNorm" && norm != "layernorm" && norm != "rmsnorm") in_.complain("normalization", fmt::format("'{}' is no norm of Megatron's", norm), "Use LayerNorm or RMSNorm");
    fact("model.norm", layer_.rms_norm ? "rms_norm" : "layer_norm", "normalization");
    fact("model.norm_bias", layer_.rms_norm ? "false" : "true", "normalization");
    const bool bias = layer_.linear_biases;
    in_.flag("add_bias_linear");
    in_.flag("disable_bias_linear");
    const bool qkv = bias || in_.flag("add_qkv_bias").value_or(false);
    std::vector<std::string> biases;
    if (qkv) biases.push_back("qkv");
    if (bias) biases.insert(biases.end(), {"attention_output", "mlp"});
    in_.set_list("model.biases", biases, in_.has("disable_bias_linear") ? "disable_bias_linear" : in_.has("add_bias_linear") ? "add_bias_linear" : "add_qkv_bias");
    fact("model.qk_norm", layer_.qk_norm || in_.flag("qk_l2_norm").value_or(false) ? "true" : "false", in_.has("qk_layernorm") ? "qk_layernorm" : "qk_l2_norm");
    read_softmax();
    if (const auto limit = in_.number("activation_func_clamp_value"); limit && *limit > 0) in_.set("model.clamped_activation", "true", "activation_func_clamp_value");
    fact("model.tied_embeddings", layer_.untied ? "false" : "true", "untie_embeddings_and_output_weights");
    in_.find("untie_embeddings_and_output_weights");
    fact("model.dropout", config::number_text(layer_.hidden_dropout), "hidden_dropout");
    fact("model.attention_dropout", config::number_text(layer_.attention_dropout), "attention_dropout");
    in_.number("hidden_dropout");
    in_.number("attention_dropout");
    read_positions(hidden, heads);
    if (const auto mtp = in_.integer("mtp_num_layers", config::between(0, 100)); mtp && *mtp > 0) read_predictions(*mtp, "mtp_num_layers");
  }

  /// A softmax with one logit more than there are keys, learned for each head or 0. Source: megatron/core/transformer/transformer_config.py, softmax_type.
  void read_softmax() {
    if (!in_.has("softmax_type")) return;
    const std::string type = in_.word("softmax_type").value_or("vanilla");
    if (type == "learnable") in_.set("model.attention_sinks", "true", "softmax_type");
    else if (type == "vanilla" || type == "off-by-one") in_.ignore("softmax_type", "costs nothing");
    else in_.complain("softmax_type", fmt::format("'{}' is no softmax of Megatron's", type), "Use vanilla, off-by-one or learnable");
  }

  /// Megatron trains the further layers that a model has.
  void read_predictions(std::int64_t layers, const char* key) {
    if (const auto stated = in_.integer("mtp_num_layers", config::between(0, 100)); stated && *stated != layers) in_.complain(key, fmt::format("has {} prediction layers, but mtp_num_layers is {}", layers, *stated));
    in_.set("model.mtp_layers", std::to_string(layers), key);
    in_.set("training.multi_token_prediction", "true", key);
    fact("model.mtp_repeated", in_.flag("mtp_use_repeated_layer").value_or(false) ? "true" : "false", "mtp_use_repeated_layer");
  }

  void read_positions(std::int64_t, std::int64_t) {
    const std::string kind = layer_.position.value_or("learned_absolute");
    const char* by = in_.has("position_embedding_type") ? "position_embedding_type" : "use_rotary_position_embeddings";
    in_.flag("use_rotary_position_embeddings");
    in_.number("rotary_percent");
    if (kind == "rope" || kind == "rotary" || kind == "yarn" || kind == "mrope") {   // "rotary": Megatron-DeepSpeed
      fact("model.position", "rotary", by);
      if (const auto part = in_.number("rotary_percent"); part && *part > 0 && *part < 1)
        fact("model.rotary_dim", std::to_string(std::max<std::int64_t>(2, static_cast<std::int64_t>(static_cast<double>(head_dim_) * *part) / 2 * 2)), "rotary_percent");
      if (in_.has("max_position_embeddings")) in_.ignore("max_position_embeddings", "rotary positions have no table");
    } else if (kind == "learned_absolute") {
      fact("model.position", "learned", by);
      if (!size({"max_position_embeddings"}, "model.max_positions", positive) && !in_.is_open("seq_length")) size({"seq_length"}, "model.max_positions", positive);
    } else if (kind == "none" || kind == "alibi") {   // "alibi": Megatron-DeepSpeed
      fact("model.position", kind, by);
      if (in_.has("max_position_embeddings")) in_.ignore("max_position_embeddings", "there is no table of positions");
    } else {
      in_.refuse(by, "position_embedding_type " + kind, "Give the scenario a model");
    }
  }

  void read_experts(std::int64_t layers) {
    const char* name = in_.has("num_moe_experts") ? "num_moe_experts" : "num_experts";
    const auto count = in_.integer(name, config::between(1, 1 << 20));
    if (!count) return;
    in_.set("model.experts.count", std::to_string(*count), name);
    if (!size({"moe_router_topk"}, "model.experts.top_k", config::between(1, 1 << 20))) in_.assume("model.experts.top_k", "2", "moe_router_topk is 2 unless given");
    size({"moe_ffn_hidden_size"}, "model.experts.ffn_hidden", positive);
    size({"moe_shared_expert_intermediate_size"}, "model.experts.shared_ffn_hidden", positive);
    if (const auto gated = in_.flag("moe_shared_expert_gate")) in_.set("model.experts.shared_gate", *gated ? "true" : "false", "moe_shared_expert_gate");
    size({"moe_latent_size"}, "model.experts.latent", positive);
    size({"moe_router_num_groups"}, "model.experts.groups", positive);
    size({"moe_router_group_topk"}, "model.experts.groups_per_token", positive);
    read_expert_layers(layers);
  }

  /// moe_layer_freq: N (layers 0, N, 2N, ... have experts) or a list such as ([0]*3+[1]*58).
  void read_expert_layers(std::int64_t layers) {
    const config::Value* v = in_.find("moe_layer_freq");
    if (v == nullptr) return;
    if (const auto every = v->is_scalar() ? config::parse_integer(v->text()).value : std::nullopt) {
      if (*every == 1) return in_.use("moe_layer_freq", "every layer has experts");
      return in_.refuse("moe_layer_freq", "experts in layers 0, N, 2N, ...", "Give the scenario a model");
    }
    const auto pattern = pattern_of(*v);
    if (!pattern) return in_.complain("moe_layer_freq", fmt::format("'{}' is neither a number nor a list of numbers", v->text()), fmt::format("Write, in quotes, 0 for each dense layer and 1 for each with experts: ([0]*1+[1]*{}) where the first alone is dense", std::max<std::int64_t>(1, layers - 1)));
    if (static_cast<std::int64_t>(pattern->size()) != layers) return in_.complain("moe_layer_freq", fmt::format("describes {} layers, but the model has {}", pattern->size(), layers));
    std::size_t dense = 0;
    while (dense < pattern->size() && (*pattern)[dense] == 0) ++dense;
    const auto is = [&](auto has_experts) {
      for (std::size_t i = 0; i < pattern->size(); ++i)
        if (((*pattern)[i] != 0) != has_experts(i)) return false;
      return true;
    };
    if (is([&](std::size_t i) { return i >= dense; })) return in_.set("model.experts.dense_first", std::to_string(dense), "moe_layer_freq");
    if (is([&](std::size_t i) { return (i + 1) % (dense + 1) == 0; })) return in_.set("model.experts.every", std::to_string(dense + 1), "moe_layer_freq");
    in_.refuse("moe_layer_freq", "dense layers between layers with experts in this order", "Give the scenario a model");
  }

  /// A list, or the text of one, in quotes where the script hands its command to eval. Unquoted in a script, the shell's own words come as a list of texts.
  static std::optional<std::vector<std::int64_t>> pattern_of(const config::Value& v) {
    if (!v.is_list()) return parse_list_expression(without_quotes(v.text()));
    std::string text;
    for (const config::Value& item : v.items()) text += (text.empty() ? "" : " ") + item.text();
    if (const auto expression = parse_list_expression(text)) return expression;
    std::vector<std::int64_t> all;
    for (const config::Value& item : v.items()) {
      const auto n = config::parse_integer(item.text());
      if (!n) return std::nullopt;
      all.push_back(*n.value);
    }
    return all;
  }

  /// Megatron's window (before, after) counts keys beside the query's own; freq: one layer in N, or those with 0, see everything.
  /// Source: megatron/core/transformer/utils.py, is_layer_window_attention; NVIDIA/Megatron-LM, examples/gptoss/02_train.sh.
  void read_windows(std::int64_t layers) {
    constexpr const char *kSize = "window_size", *kFreq = "window_attn_skip_freq";
    const config::Value *size = in_.find(kSize), *freq = in_.find(kFreq);
    if (size == nullptr) {
      if (freq != nullptr) in_.use(kFreq, "no window_size: every layer sees all keys");
      return;
    }
    std::string text = size->is_list() ? "" : size->text();
    for (const config::Value& item : size->items()) text += (text.empty() ? "" : ",") + item.text();
    std::erase_if(text, [](char c) { return c == '(' || c == ')' || c == ' ' || c == '[' || c == ']'; });
    const auto both = parse_list_expression("[" + text + "]");
    if (!both || both->size() != 2 || (*both)[0] < 0 || (*both)[1] < -1) return in_.complain(kSize, fmt::format("'{}' is no window", text), "Write 127,0");
    if ((*both)[1] > 0) return in_.refuse(kSize, "a window over later tokens");
    std::string letters = "L";
    if (freq != nullptr) {
      const auto every = freq->is_scalar() ? config::parse_integer(freq->text()).value : std::nullopt;
      const auto pattern = every ? std::nullopt : pattern_of(*freq);
      if (every && *every >= 1 && *every <= layers) letters = std::string(static_cast<std::size_t>(*every) - 1, 'L') + "G";
      else if (pattern && static_cast<std::int64_t>(pattern->size()) == layers) letters.clear();
      else if (!every || *every < 1) return in_.complain(kFreq, "is neither a number nor a list of as many numbers as layers", "Write 2, or \"[1,0]*12\"");
      for (std::size_t i = 0; pattern && i < pattern->size(); ++i) letters += (*pattern)[i] != 0 ? 'L' : 'G';
      in_.set("model.windows.pattern", letters, kFreq);
    }
    if (letters.find('L') == std::string::npos) return in_.use(kSize, "no layer has a window");
    in_.set("model.windows.size", std::to_string((*both)[0] + 1), kSize, "with the query's own key");
  }


  /// Of several stages Megatron merges a forward and a backward under the interleaved schedule only.
  void read_overlap() {
    constexpr const char* key = "overlap_moe_expert_parallel_comm";
    if (!in_.flag(key).value_or(false)) return;
    const bool interleaved = in_.has("virtual_pipeline_model_parallel_size") || in_.has("num_virtual_stages_per_pipeline_rank") || in_.has("num_layers_per_virtual_pipeline_stage") || in_.has("pipeline_model_parallel_layout");
    if (in_.integer("pipeline_model_parallel_size").value_or(1) == 1 || interleaved) in_.set("experts.overlap_exchange", "true", key);
    else in_.use(key, "stages of one chunk each have no passes to merge");
  }

  /// How tokens reach experts. What a dense model's dump says of it is nothing.
  void read_routing() {
    if (!in_.has("num_experts") && !in_.has("num_moe_experts")) return;
    const std::string type = in_.word("moe_token_dispatcher_type").value_or("allgather"), backend = in_.word("moe_flex_dispatcher_backend").value_or("deepep");
    const bool deepep = in_.flag("moe_enable_deepep").value_or(false) || type == "flex";
    if (deepep && backend != "deepep" && backend != "hybridep") in_.refuse("moe_flex_dispatcher_backend", "the dispatcher " + backend);
    else if (deepep && in_.has("moe_flex_dispatcher_backend")) in_.use("moe_flex_dispatcher_backend", "the dispatcher is " + backend);
    const char* by = in_.has("moe_token_dispatcher_type") ? "moe_token_dispatcher_type" : "moe_enable_deepep";
    const char* ours = deepep ? (backend == "hybridep" ? "hybridep" : "deepep") : type == "alltoall" || type == "alltoall_seq" ? "all-to-all" : "all-gather";
    if (in_.has(by)) in_.set("experts.dispatcher", ours, by);
    else in_.assume("experts.dispatcher", ours, "Megatron's default");
    if (const auto factor = in_.number("moe_expert_capacity_factor"); factor && *factor > 0) in_.set("experts.capacity_factor", config::number_text(*factor), "moe_expert_capacity_factor");
    if (in_.flag("moe_pad_expert_input_to_capacity").value_or(false)) in_.set("experts.pad_to_capacity", "true", "moe_pad_expert_input_to_capacity");
    read_overlap();
    // Assumption: experts of a router from scratch that nothing balances are as popular as words are; such routers follow tokens by what they are, from early on
    // (Xue et al. 2024, OpenMoE, context-independent specialization).
    if (in_.word("moe_router_load_balancing_type").value_or("") == "none" && !in_.flag("moe_router_force_load_balancing").value_or(false) && !in_.flag("moe_router_enable_expert_bias").value_or(false)) {
      in_.set("experts.routing.distribution", "zipf", "moe_router_load_balancing_type", "nothing balances the router: experts taken to be as popular as words are (Zipf's law)");
      in_.fragment().set("experts.routing.skew", "1", {});
    }
    if (const auto fused = in_.flag("moe_router_fusion")) in_.set("experts.fused_router", *fused ? "true" : "false", "moe_router_fusion");
    if (const auto fused = in_.flag("moe_permute_fusion")) in_.set("experts.fused_permute", *fused ? "true" : "false", "moe_permute_fusion");
    if (deepep && backend == "deepep" && in_.flag("enable_experimental").value_or(false)) in_.set("experts.fused_index_map", "true", "enable_experimental");
    if (const char* argument = backend == "hybridep" ? "moe_hybridep_num_sms" : "moe_deepep_num_sms"; deepep)
      if (const auto sms = in_.integer(argument, config::positive)) in_.set("experts.dispatch_sms", std::to_string(*sms), argument);
    read_operation_fuser();
    if (const auto overlap = in_.flag("moe_shared_expert_overlap")) in_.set("experts.overlap_shared", *overlap ? "true" : "false", "moe_shared_expert_overlap");
  }

  /// Megatron leaves experts with gated activations to Transformer Engine's operations only where the environment asks for their fused kernels.
  /// Source: megatron/core/transformer/moe/experts.py, _is_fused_impl_supported.
  void read_operation_fuser() {
    if (!in_.flag("use_transformer_engine_op_fuser").value_or(false)) return;
    constexpr const char* kernels = "NVTE_CUTEDSL_FUSED_GROUPED_MLP";
    if (in_.flag("swiglu").value_or(false) && !in_.flag(kernels).value_or(false)) {
      in_.use("use_transformer_engine_op_fuser", std::string("experts as without: ") + kernels + " is not set");
      return;
    }
    in_.set("experts.fused_mlp", "true", "use_transformer_engine_op_fuser");
    if (const auto factor = in_.number("moe_expert_rank_capacity_factor"); factor && *factor > 0) in_.set("experts.rank_capacity_factor", config::number_text(*factor), "moe_expert_rank_capacity_factor");
    if (in_.flag("moe_paged_stash").value_or(false)) in_.set("experts.paged_stash", "true", "moe_paged_stash");
  }

  void read_latent_attention() {
    if (!in_.flag("multi_latent_attention").value_or(false)) return;
    in_.use("multi_latent_attention", "model.latent_attention");
    size({"q_lora_rank"}, "model.latent_attention.q_lora_rank", positive);
    for (const auto& [name, ours, usual] : {std::tuple{"kv_lora_rank", "kv_lora_rank", "32"}, {"qk_head_dim", "qk_nope_head_dim", "128"}, {"qk_pos_emb_head_dim", "qk_rope_head_dim", "64"}, {"v_head_dim", "v_head_dim", "128"}}) {
      const std::string key = std::string("model.latent_attention.") + ours;
      if (!size({name}, key.c_str(), positive)) in_.assume(key, usual, "Megatron's default");
    }
  }

  /// A fact of the style: from the argument when it is there, else Megatron's default.
  void fact(const char* ours, const std::string& value, const char* argument) {
    if (in_.has(argument)) in_.set(ours, value, argument);
    else in_.fragment().set(ours, value, {in_.root().place().source, 0, 0});
  }

  Importer& in_;
  const MegatronLayer& layer_;
  std::int64_t head_dim_ = 1;
  std::string pattern_;   // letters of a hybrid model's layers
};

}  // namespace

void read_megatron_model(Importer& in, const MegatronLayer& layer) { Model(in, layer).read(); }

}  // namespace rehearse::importers
