#include "strategies/tuning/tuning.h"

#include <algorithm>
#include <charconv>

namespace rehearse::strategies {
namespace {

constexpr std::int64_t kBlock = 64, kNestedBlock = 256, kGptqGroup = 128;

bool contains(const std::string& text, const char* word) { return text.find(word) != std::string::npos; }

bool any(const std::string& text, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(), [&](const char* w) { return contains(text, w); });
}

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

bool is_expert(const std::string& weight) { return contains(weight, "expert"); }

bool in_part(const std::string& part, const std::string& weight, int layer) {
  if (part == "all" || part.empty()) return true;
  if (part == "embedding") return any(weight, {"word_embeddings", "position_embeddings", "embedding norm", "embedding projection"});
  if (part == "head") return any(weight, {"lm_head", "output projection"});
  if (part == "norms") return contains(weight, "norm");
  if (part == "biases") return weight.ends_with(".bias");
  if (part == "router") return contains(weight, "router");
  if (part == "experts") return is_expert(weight);
  if (part == "attention") return layer >= 0 && any(weight, {"qkv", "q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj"});
  if (part == "mlp") return layer >= 0 && !is_expert(weight) && any(weight, {"fc1", "fc2", "gate_up", "gate_proj", "up_proj", "down_proj"});
  return weight.starts_with(part + ".");
}

}  // namespace

std::optional<Selector> parse_selector(const std::string& text) {
  Selector s;
  std::string rest = text;
  if (rest == "layers" || rest.starts_with("layers.")) {
    if (rest.size() < 8) return std::nullopt;
    rest = rest.substr(7);
    const auto dot = rest.find('.');
    const std::string range = rest.substr(0, dot);
    rest = dot == rest.npos ? "" : rest.substr(dot + 1);
    const auto dash = range.find('-');
    const auto first = number(std::string_view(range).substr(0, dash)), last = dash == range.npos ? first : number(std::string_view(range).substr(dash + 1));
    if (!first || !last || *first > *last || (dot != std::string::npos && rest.empty())) return std::nullopt;
    s.first = *first;
    s.last = *last;
  }
  if (rest.starts_with("experts.")) {
    const std::string range = rest.substr(8);
    const auto dash = range.find('-');
    const auto first = number(std::string_view(range).substr(0, dash)), last = dash == range.npos ? first : number(std::string_view(range).substr(dash + 1));
    if (!first || !last || *first > *last) return std::nullopt;
    s.first_expert = *first;
    s.last_expert = *last;
    rest = "experts";
  }
  if (rest.find('.') != rest.npos || (rest.empty() && s.first < 0)) return std::nullopt;
  s.part = rest;
  return s;
}

bool selects(const Selector& s, const std::string& weight, int layer) {
  if (s.first >= 0 && (layer < s.first || layer > s.last)) return false;
  return in_part(s.part, weight, layer);
}

std::int64_t trained_experts(const Tuning& tuning, int layer, std::int64_t experts) {
  if (tuning.kind == TuningKind::full) return experts;
  std::vector<bool> trained(static_cast<std::size_t>(experts), false);
  for (const std::string& text : tuning.trainable) {
    const auto s = parse_selector(text);
    if (!s || !selects(*s, "experts.weight", layer)) continue;
    const std::int64_t first = s->first_expert < 0 ? 0 : s->first_expert, last = s->first_expert < 0 ? experts - 1 : s->last_expert;
    for (std::int64_t i = first; i <= std::min(last, experts - 1); ++i) trained[static_cast<std::size_t>(i)] = true;
  }
  return std::count(trained.begin(), trained.end(), true);
}

bool trains(const Tuning& tuning, const std::string& weight, int layer) {
  if (tuning.kind == TuningKind::full) return true;
  // litgpt/adapter_v2.py, adapter_filter: norm_1, norm_2 and ln_f are trained whole.
  if (tuning.kind == TuningKind::adapter_v2 && in_part("norms", weight, layer)) return true;
  return std::any_of(tuning.trainable.begin(), tuning.trainable.end(), [&](const std::string& text) {
    const auto s = parse_selector(text);
    return s && selects(*s, weight, layer);
  });
}

std::vector<std::string> parts_of(const std::string& linear) {
  if (linear == "qkv") return {"q_proj", "k_proj", "v_proj"};
  if (linear.ends_with("gate_up")) {
    const std::string prefix = linear.substr(0, linear.size() - 7);
    return {prefix + "gate_proj", prefix + "up_proj"};
  }
  return {linear};
}

std::vector<std::size_t> adapted_parts(const Tuning& tuning, const std::string& linear, const std::vector<std::string>& parts) {
  std::vector<std::size_t> out;
  if (!tuning.low_rank()) return out;
  // PEFT's default for Llama and its relatives: queries and values (peft utils/constants.py).
  static const std::vector<std::string> usual{"q_proj", "v_proj"};
  const auto& targets = tuning.targets.empty() ? usual : tuning.targets;
  auto targeted = [&](const std::string& name) {
    return std::any_of(targets.begin(), targets.end(), [&](const std::string& t) {
      if (t == "all-linear") return name != "lm_head" && !contains(name, "router") && !contains(name, "embedding") && !contains(name, "output projection");
      if (t == "attention" || t == "mlp" || t == "experts") return in_part(t, name + ".weight", 0);
      return name == t;
    });
  };
  if (targeted(linear)) {
    for (std::size_t i = 0; i < parts.size(); ++i) out.push_back(i);
    return out;
  }
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (targeted(parts[i])) out.push_back(i);
  return out;
}

bool quantises(const Tuning& tuning, const FrameworkProfile& profile, const std::string& linear) {
  if (!tuning.four_bit()) return false;
  if (contains(linear, "router") || contains(linear, "embedding")) return false;
  return profile.quantises_head || (linear != "lm_head" && !contains(linear, "output projection"));
}

bool upcasts_unquantised(const Strategy& strategy, const FrameworkProfile& profile) {
  const DataParallelKind kind = strategy.data_parallel.kind;
  const bool sharded = kind == DataParallelKind::fsdp1 || kind == DataParallelKind::fsdp2 || kind == DataParallelKind::zero3 || kind == DataParallelKind::megatron_fsdp;
  return profile.upcasts_unquantised && strategy.tuning.four_bit() && strategy.tuning.format == FourBit::nf4 && !sharded;
}

std::int64_t quantised_bytes(std::int64_t elements, bool double_quantisation) {
  const std::int64_t blocks = (elements + kBlock - 1) / kBlock;
  const std::int64_t scales = double_quantisation ? blocks + (blocks + kNestedBlock - 1) / kNestedBlock * 4 : blocks * 4;
  return (elements + 1) / 2 + scales;
}

std::int64_t gptq_groups(std::int64_t elements) { return (elements + kGptqGroup - 1) / kGptqGroup; }

std::int64_t quantised_bytes(std::int64_t elements, const Tuning& tuning) {
  if (tuning.format == FourBit::nf4) return quantised_bytes(elements, tuning.double_quantization);
  const std::int64_t groups = gptq_groups(elements);
  return (elements + 1) / 2 + groups * 2 + (groups + 1) / 2;
}

std::int64_t quantisation_states(std::int64_t elements, const Tuning& tuning) {
  return tuning.format == FourBit::nf4 ? quantised_bytes(elements, tuning) - (elements + 1) / 2 : 0;
}

bool has_prompt(const Tuning& tuning, int layer) { return tuning.prompts() && layer >= kFirstPrompted; }

std::string tuning_signature(const Tuning& tuning, int layer) {
  std::string text = has_prompt(tuning, layer) ? "prompt " : "";
  for (const std::string& t : tuning.trainable) {
    const auto s = parse_selector(t);
    text += s && s->first >= 0 && (layer < s->first || layer > s->last) ? '-' : '+';
  }
  return text;
}

}  // namespace rehearse::strategies
