#include "sim/model/shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sim/core/contract.h"

namespace rehearse::model {

namespace {

std::int64_t default_ffn(const Shapes& shapes) {
  constexpr std::int64_t kLargest =
      1'000'000'000;  // beyond it problems_of() speaks; here it must not overflow
  if (shapes.hidden > kLargest || shapes.hidden < -kLargest) return 0;
  if (!shapes.gated) return 4 * shapes.hidden;
  // Llama's rule: two thirds of 4h so that three matrices cost what two did, rounded up to a multiple of 256.
  const std::int64_t two_thirds = 8 * shapes.hidden / 3;
  return (two_thirds + 255) / 256 * 256;
}

/// What a letter of a layer pattern stands for, where that has a mixer, or an MLP or experts alone.
struct LayerLetter {
  char letter;
  Mixer mixer;
  bool feed_forward;
};
constexpr std::array<LayerLetter, 8> kLayerLetters{{{'T', Mixer::attention, true}, {'S', Mixer::state_space, true}, {'D', Mixer::delta_net, true}, {'M', Mixer::state_space, false},
                                                    {'G', Mixer::delta_net, false}, {'*', Mixer::attention, false}, {'-', Mixer::none, true}, {'E', Mixer::none, true}}};

void make_gpt_style(ModelDescription& model, const Shapes& shapes) {
  model.family = "gpt";
  model.gated_mlp = false;
  model.activation = Activation::gelu;
  model.norm = Norm::layer_norm;
  model.norm_bias = true;
  model.position = Position::learned;
  model.max_positions = shapes.max_positions;
  model.qkv_bias = model.attention_output_bias = model.mlp_bias = true;
  model.tied_embeddings = shapes.tied.value_or(true);
}

void make_llama_style(ModelDescription& model, const Shapes& shapes) {
  model.family = "llama";
  model.rotary_dim = model.head_dim;
  model.tied_embeddings = shapes.tied.value_or(false);
}

}  // namespace

ModelDescription make_from_shapes(const Shapes& shapes) {
  ModelDescription model;
  model.name = shapes.name;
  model.hidden = shapes.hidden;
  model.heads = shapes.heads;
  model.kv_heads = shapes.kv_heads.value_or(shapes.heads);
  // A hidden size that the heads do not divide leaves 0, which problems_of reports with both numbers.
  const bool whole = shapes.heads > 0 && shapes.hidden % shapes.heads == 0;
  model.head_dim = shapes.head_dim.value_or(whole ? shapes.hidden / shapes.heads : 0);
  model.ffn_hidden = shapes.ffn_hidden.value_or(default_ffn(shapes));
  model.vocab = shapes.vocab;
  if (shapes.gated)
    make_llama_style(model, shapes);
  else
    make_gpt_style(model, shapes);
  if (shapes.experts > 0) {
    model.experts.experts = shapes.experts;
    model.experts.top_k = shapes.top_k > 0 ? shapes.top_k : 1;
    model.experts.ffn_hidden = shapes.moe_ffn_hidden.value_or(model.ffn_hidden);
    model.experts.shared_ffn_hidden = shapes.shared_ffn_hidden;
  }
  // One entry is stored per layer: an absurd count is cut to just above what problems_of() lets pass.
  if (shapes.layers > 0)
    model.layers.assign(static_cast<std::size_t>(std::min<std::int64_t>(shapes.layers, 10'001)),
                        Layer{0, shapes.experts > 0, true});
  return model;
}

std::string apply_layer_pattern(const std::string& pattern, ModelDescription& model) {
  const std::size_t unknown = pattern.find_first_not_of("TSDMG*-E");
  if (pattern.empty()) return "is empty";
  if (unknown != std::string::npos) return fmt::format("\"{}\" has a letter {} that stands for nothing", pattern, pattern[unknown]);
  if (pattern.find('E') != std::string::npos && model.experts.experts == 0) return fmt::format("\"{}\" has layers of experts, but the model has none", pattern);
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    Layer& layer = model.layers[i];
    const char letter = pattern[i % pattern.size()];
    const LayerLetter* known = std::find_if(kLayerLetters.begin(), kLayerLetters.end(), [letter](const LayerLetter& l) { return l.letter == letter; });
    layer.mixer = known->mixer;
    layer.feed_forward = known->feed_forward;
    layer.moe = letter == 'E' || (layer.feed_forward && letter != '-' && layer.moe);
  }
  return "";
}

std::string layer_pattern_of(const ModelDescription& model) {
  std::string pattern;
  for (const Layer& layer : model.layers) {
    if (layer.mixer == Mixer::none) pattern += layer.moe ? 'E' : '-';
    else pattern += std::find_if(kLayerLetters.begin(), kLayerLetters.end(), [&layer](const LayerLetter& l) { return l.mixer == layer.mixer && l.feed_forward == layer.feed_forward; })->letter;
  }
  return pattern;
}

ModelDescription with_layers(ModelDescription model, std::int64_t layers) {
  EXPECTS(layers >= 1, fmt::format("{} layers asked for", layers));
  EXPECTS(!model.layers.empty(), "a model without layers has no pattern to repeat");
  const std::size_t want = static_cast<std::size_t>(layers), have = model.layers.size();
  if (want <= have) {
    model.layers.resize(want);
    return model;
  }
  // Leading layers may be special (DeepSeek's dense ones), so the pattern repeated is the shortest one that
  // explains the back half of the list.
  std::size_t period = 1;
  const auto explains = [&](std::size_t p) {
    for (std::size_t i = have / 2 + p; i < have; ++i)
      if (!(model.layers[i] == model.layers[i - p])) return false;
    return true;
  };
  while (period < have && !explains(period)) ++period;
  for (std::size_t i = have; i < want; ++i) model.layers.push_back(model.layers[i - period]);
  return model;
}

ModelDescription with_sizes(ModelDescription model, const Shapes& stated) {
  const auto replace = [](std::int64_t& ours, std::int64_t theirs) {
    if (theirs != 0) ours = theirs;
  };
  const bool derived = model.heads > 0 && model.head_dim * model.heads == model.hidden;
  const bool all_keys_own = model.kv_heads == model.heads;
  const bool rotates_all = model.rotary_dim == model.head_dim;
  if (stated.layers > 0) model = with_layers(std::move(model), stated.layers);
  replace(model.hidden, stated.hidden);
  replace(model.heads, stated.heads);
  replace(model.vocab, stated.vocab);
  if (all_keys_own) model.kv_heads = model.heads;
  replace(model.kv_heads, stated.kv_heads.value_or(0));
  if (derived && model.heads > 0)
    model.head_dim = model.hidden % model.heads == 0 ? model.hidden / model.heads : 0;
  replace(model.head_dim, stated.head_dim.value_or(0));
  if (rotates_all) model.rotary_dim = model.head_dim;
  const std::int64_t ffn = stated.ffn_hidden.value_or(0);
  if (model.experts.experts == 0 || ffn != model.experts.ffn_hidden) replace(model.ffn_hidden, ffn);
  replace(model.experts.experts, stated.experts);
  replace(model.experts.top_k, stated.top_k);
  replace(model.experts.ffn_hidden, stated.moe_ffn_hidden.value_or(0));
  replace(model.experts.shared_ffn_hidden, stated.shared_ffn_hidden);
  if (stated.tied) model.tied_embeddings = *stated.tied;
  if (model.position == Position::learned) replace(model.max_positions, stated.max_positions);
  return model;
}

}  // namespace rehearse::model
