#include "sim/model/describe.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/model/shapes.h"

namespace rehearse::model {

namespace {

std::string layer_text(const Layer& layer, bool model_has_experts, bool rotary_model) {
  std::string text;
  if (model_has_experts) text = layer.moe ? "experts" : "dense";
  if (layer.mixer == Mixer::none) return layer.moe ? "experts alone" : "MLP alone";
  if (layer.mixer != Mixer::attention) {
    const char* mixer = layer.mixer == Mixer::state_space ? "state space" : "delta rule";
    return layer.feed_forward ? text + (text.empty() ? "" : ", ") + mixer : std::string(mixer) + " alone";
  }
  if (!layer.feed_forward && layer.window == 0) return "attention alone";
  const std::string attention = layer.window == 0
                                    ? "full attention"
                                    : fmt::format("{} {}", layer.chunked ? "chunk" : "window", layer.window);
  text += text.empty() ? attention : ", " + attention;
  if (rotary_model && !layer.rotary) text += ", no positions";
  return text;
}

std::string attention_text(const ModelDescription& model) {
  if (model.latent.present()) {
    const LatentAttention& mla = model.latent;
    return fmt::format("{} heads, latent: q rank {}, kv rank {}, head {} + {} rotary, value {}", model.heads,
                       mla.q_lora_rank > 0 ? std::to_string(mla.q_lora_rank) : "none", mla.kv_lora_rank,
                       mla.qk_nope_head_dim, mla.qk_rope_head_dim, mla.v_head_dim);
  }
  const char* kind = model.kv_heads == model.heads ? "multi-head"
                     : model.kv_heads == 1         ? "multi-query"
                                                   : "grouped";
  return fmt::format("{} heads of {}, {} key/value heads ({}){}{}{}", model.heads, model.head_dim,
                     model.kv_heads, kind, model.joint_qk_norm ? ", q/k norm over all heads" : model.qk_norm ? ", q/k norm" : "",
                     model.attention_sinks ? ", sinks" : "", model.attention_gate ? ", gated" : "");
}

std::string experts_text(const Experts& moe) {
  std::string text =
      fmt::format("{} experts of width {}, {} per token", moe.experts, moe.ffn_hidden, moe.top_k);
  if (moe.shared_ffn_hidden > 0)
    text += fmt::format(", shared {}{}", moe.shared_ffn_hidden, moe.shared_gate ? " (gated)" : "");
  if (moe.latent > 0) text += fmt::format(", in a latent of {}", moe.latent);
  if (moe.groups > 0) text += fmt::format(", {} of {} groups", moe.groups_per_token, moe.groups);
  return text;
}

std::string state_space_text(const StateSpace& mixer) {
  return fmt::format("{} heads of {}, {} groups, state {}, convolution over {}, chunks of {}{}", mixer.heads, mixer.head_dim, mixer.groups, mixer.state,
                     mixer.convolution, mixer.chunk, mixer.norm ? "" : ", no norm");
}

std::string delta_net_text(const DeltaNet& mixer) {
  return fmt::format("{} value heads of {}, {} query and key heads of {}, convolution over {}", mixer.value_heads, mixer.value_dim, mixer.key_heads, mixer.key_dim, mixer.convolution);
}

std::string biases_text(const ModelDescription& model) {
  std::vector<std::string> list;
  if (model.qkv_bias) list.emplace_back("qkv");
  if (model.attention_output_bias) list.emplace_back("attention output");
  if (model.mlp_bias) list.emplace_back("mlp");
  if (model.head_bias) list.emplace_back("head");
  return list.empty() ? "none" : fmt::format("{}", fmt::join(list, ", "));
}

std::string scales_text(const LearnedScales& scales) {
  std::vector<std::string> list;
  if (scales.branches) list.emplace_back("branches");
  if (scales.embedding) list.emplace_back("embedding");
  if (scales.queries) list.emplace_back("queries");
  return fmt::format("{}", fmt::join(list, ", "));
}

std::string position_text(const ModelDescription& model) {
  std::string text(name_of(model.position));
  if (model.position == Position::learned) text += fmt::format(", {} rows", model.max_positions);
  if (model.position == Position::rotary && model.rotary_dim != model.head_dim)
    text += fmt::format(", {} of {} dimensions", model.rotary_dim, model.head_dim);
  return text;
}

}  // namespace

std::string_view name_of(Norm norm) { return norm == Norm::rms_norm ? "rms_norm" : "layer_norm"; }

std::string_view name_of(Position position) {
  switch (position) {
    case Position::rotary:
      return "rotary";
    case Position::learned:
      return "learned";
    case Position::alibi:
      return "alibi";
    case Position::none:
      return "none";
  }
  return {};
}

std::string_view name_of(Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return "gelu_tanh";
    case Activation::silu:
      return "silu";
    case Activation::relu:
      return "relu";
    case Activation::squared_relu:
      return "squared_relu";
  }
  return {};
}

std::string human_count(std::int64_t count) {
  const double value = static_cast<double>(count);
  if (value >= 1e12) return fmt::format("{:.2f} T", value / 1e12);
  if (value >= 1e9) return fmt::format("{:.2f} B", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.1f} M", value / 1e6);
  return std::to_string(count);
}

namespace {

/// Layers of one kind that follow one another, and how many.
using Runs = std::vector<std::pair<std::string, int>>;

/// The pattern of two or more runs that, repeated from the first on, covers most of them, and how often it stands there.
std::pair<std::size_t, std::size_t> repeated_pattern(const Runs& runs) {
  std::size_t best = 0, best_times = 1;
  for (std::size_t length = 2; 2 * length <= runs.size(); ++length) {
    std::size_t equal = length;
    while (equal < runs.size() && runs[equal] == runs[equal - length]) ++equal;
    const std::size_t times = equal / length;
    if (times > 1 && times * length > best * best_times) best = length, best_times = times;
  }
  return {best, best_times};
}

std::string listed(const Runs& runs, std::size_t from, std::size_t to) {
  std::string text;
  for (std::size_t i = from; i < to; ++i) text += fmt::format("{}{} x {}", i > from ? "; " : "", runs[i].second, runs[i].first);
  return text;
}

}  // namespace

namespace {

/// Of a model whose layers are parts: how many of each, and in which order.
std::string described_parts(const ModelDescription& model, const Runs& runs) {
  Runs kinds;
  for (const auto& [text, times] : runs) {
    const auto known = std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) { return kind.first == text; });
    if (known == kinds.end()) kinds.emplace_back(text, times);
    else known->second += times;
  }
  return fmt::format("{} ({})", listed(kinds, 0, kinds.size()), layer_pattern_of(model));
}

}  // namespace

std::string describe_layers(const ModelDescription& model) {
  const bool rotary = model.position == Position::rotary;
  Runs runs;
  for (const Layer& layer : model.layers) {
    const std::string text = layer_text(layer, model.experts.experts > 0, rotary);
    if (runs.empty() || runs.back().first != text) runs.emplace_back(text, 0);
    ++runs.back().second;
  }
  if (std::any_of(model.layers.begin(), model.layers.end(), [](const Layer& layer) { return layer.one_part(); })) return described_parts(model, runs);
  // Kinds that repeat in a pattern (Gemma, GPT-OSS: two; Llama 4 Maverick: four) are one group; what is left over follows.
  const auto [pattern, times] = repeated_pattern(runs);
  std::string text;
  if (times > 1) text = fmt::format("{} x ({})", times, listed(runs, 0, pattern));
  const std::size_t covered = times > 1 ? pattern * times : 0;
  if (covered < runs.size()) text += (text.empty() ? "" : "; ") + listed(runs, covered, runs.size());
  return text;
}

std::vector<std::string> describe(const ModelDescription& model) {
  std::vector<std::string> lines;
  const auto say = [&](const char* what, const std::string& text) {
    lines.push_back(fmt::format("{:<16}{}", what, text));
  };
  say("model", model.name.empty() ? "(unnamed)" : model.name);
  say("family", model.family);
  say("layers", fmt::format("{}: {}", model.layer_count(), describe_layers(model)));
  say("hidden", std::to_string(model.hidden));
  say("attention", attention_text(model));
  if (model.state_space.present()) say("state space", state_space_text(model.state_space));
  if (model.delta_net.present()) say("delta rule", delta_net_text(model.delta_net));
  if (model.ffn_hidden > 0)
    say("mlp", fmt::format("{}, {}{}", model.ffn_hidden, model.gated_mlp ? "gated " : "",
                           name_of(model.activation)));
  if (model.experts.experts > 0) say("experts", experts_text(model.experts));
  say("norms", fmt::format("{}{}, {} per layer{}{}", name_of(model.norm),
                           !model.norm_weight ? " without weights" : model.norm_bias ? " with bias" : "", model.norms_per_layer,
                           model.norms_after ? ", after attention and MLP" : "", model.parallel_residual ? ", parallel residual" : ""));
  say("positions", position_text(model));
  say("biases", biases_text(model));
  if (model.scales.any()) say("learned scales", scales_text(model.scales));
  say("vocabulary",
      fmt::format("{}, {}{}", model.vocab, model.tied_embeddings ? "tied" : "untied",
                  model.embedding_width > 0 ? fmt::format(", width {}", model.embedding_width) : ""));
  if (model.dropout > 0 || model.attention_dropout > 0)
    say("dropout", fmt::format("{} residual, {} attention", model.dropout, model.attention_dropout));

  const ParameterCount count = count_parameters(model);
  lines.emplace_back("parameters");
  const auto part = [&](const char* what, std::int64_t value) {
    if (value == 0) return;
    const double percent = 100.0 * static_cast<double>(value) / static_cast<double>(count.total);
    lines.push_back(fmt::format("  {:<16}{:>18}  {:5.1f} %", what, value, percent));
  };
  part("embedding", count.embedding);
  part("positions", count.position);
  part("attention", count.attention);
  part("state space", count.state_space);
  part("delta rule", count.delta_net);
  part("mlp", count.mlp);
  part("experts", count.experts);
  part("shared experts", count.shared_experts);
  part("router", count.router);
  part("norms", count.norms);
  part("head", count.head);
  lines.push_back(fmt::format("  {:<16}{:>18}  {}", "total", count.total, human_count(count.total)));
  if (count.active != count.total)
    lines.push_back(fmt::format("  {:<16}{:>18}  {}", "active", count.active, human_count(count.active)));
  if (count.mtp > 0)
    lines.push_back(fmt::format("  {:<16}{:>18}  {} multi-token-prediction layers{}, beyond the total", "mtp",
                                count.mtp, model.mtp_layers, model.mtp_repeated ? " with the same weights" : ""));
  return lines;
}

}  // namespace rehearse::model
