// Mistakes in a tuning section, found by looking at the weights that the model really has.
#include <algorithm>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "sim/core/suggestion.h"
#include "strategies/layer/transformer_layer.h"
#include "strategies/tuning/tuning.h"

namespace rehearse::strategies {
namespace {

/// A weight and the first layer that has it, -1: embedding or head.
struct Named {
  std::string name;
  int layer = -1;
};

struct Inventory {
  std::vector<Named> weights;          // of one layer of each kind, embedding and head; adapters left out
  std::vector<std::string> linears;
  std::int64_t trained = 0;            // elements, adapters included
};

/// The same weights, whatever pieces a sequence runs in and whatever computes the loss.
Inventory take_inventory(const model::ModelDescription& model, Strategy strategy, const FrameworkProfile& profile) {
  strategy.memory.sequence_chunk = 0;
  strategy.training.cross_entropy = LossKind::upcast;
  plan::PlanBuilder builder;
  LowerContext c = make_context(model, strategy, profile, builder);
  Inventory out;
  std::set<std::string> seen;
  auto add = [&](const Tape& tape, int layer) {
    out.trained += tape.trainable_elements();
    for (const Weight& w : tape.weights) {
      if (w.adapter) continue;
      out.weights.push_back({w.name, layer});
      const std::string linear = w.name.substr(0, w.name.rfind('.'));
      if (w.matrix && seen.insert(linear).second)
        for (const std::string& part : parts_of(linear)) out.linears.push_back(part);
    }
  };
  add(embedding_tape(c, false), -1);
  std::set<std::tuple<model::Mixer, bool, bool, std::string>> kinds;   // layers with other weights
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const model::Layer& layer = model.layers[i];
    if (!kinds.insert({layer.mixer, layer.feed_forward, layer.moe, tuning_signature(strategy.tuning, static_cast<int>(i))}).second) continue;
    c.layer = static_cast<int>(i);
    add(layer_tape(c, layer), c.layer);
  }
  c.layer = -1;
  add(head_tape(c, false), -1);
  return out;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : ", ") + w;
  return text;
}

bool has_part(const Inventory& inventory, const std::string& part) {
  return std::any_of(inventory.weights.begin(), inventory.weights.end(), [&](const Named& w) { return selects({.first = -1, .last = -1, .part = part}, w.name, w.layer); });
}

/// Parts that this model has: groups of weights, then linear layers.
std::vector<std::string> known_parts(const Inventory& inventory) {
  std::vector<std::string> out;
  for (const char* part : {"all", "embedding", "head", "norms", "biases", "attention", "mlp", "experts", "router"})
    if (has_part(inventory, part)) out.push_back(part);
  for (const std::string& linear : inventory.linears)
    if (std::find(out.begin(), out.end(), linear) == out.end()) out.push_back(linear);
  return out;
}

std::vector<std::string> known_targets(const Inventory& inventory) {
  std::vector<std::string> out{"all-linear"};
  for (const char* part : {"attention", "mlp", "experts"})
    if (has_part(inventory, part)) out.push_back(part);
  out.insert(out.end(), inventory.linears.begin(), inventory.linears.end());
  return out;
}

/// What may be written where no such part is. `aside`: what else to know of it.
std::string near_parts(const std::string& part, const std::vector<std::string>& known, const std::string& aside = "") {
  return did_you_mean(part, known, aside + (aside.empty() ? "" : ". ") + "Known: " + joined(known));
}

/// Of one selector: layers, experts and a part that the model has.
void check_selector(const model::ModelDescription& model, const Inventory& inventory, const char* key, const std::string& text, std::vector<Diagnostic>& out) {
  const auto complain = [&](std::string problem, std::string fix) { out.push_back({{}, key, std::move(problem), std::move(fix), ""}); };
  const Selector s = *parse_selector(text);
  if (s.last >= model.layer_count()) return complain(fmt::format("'{}' names layer {}, the model has {}", text, s.last, model.layer_count()), fmt::format("Layers count from 0: the last is {}", model.layer_count() - 1));
  if (s.first_expert >= 0 && model.experts.experts == 0) return complain(fmt::format("'{}' names experts, and the model has none", text), "Known: " + joined(known_parts(inventory)));
  if (s.first_expert >= 0 && s.last_expert >= model.experts.experts) complain(fmt::format("'{}' names expert {}, a layer has {}", text, s.last_expert, model.experts.experts), fmt::format("Experts count from 0: the last is {}", model.experts.experts - 1));
  if (!has_part(inventory, s.part.empty() ? "all" : s.part)) complain("'" + text + "' is no part of this model", near_parts(s.part, known_parts(inventory)));
}

}  // namespace

std::vector<Diagnostic> selector_problems(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, const char* key, const std::vector<std::string>& texts) {
  std::vector<Diagnostic> out;
  for (const std::string& text : texts)
    if (!parse_selector(text)) out.push_back({{}, key, "'" + text + "' is not written as a part", "Write a part (norms), layers.0-5, layers.0-5.mlp, or layers.0-5.experts.0-1", ""});
  if (!out.empty() || texts.empty()) return out;
  const Inventory inventory = take_inventory(model, strategy, profile);
  for (const std::string& text : texts) check_selector(model, inventory, key, text, out);
  return out;
}

std::vector<Diagnostic> tuning_problems(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, bool all_else_holds) {
  const Tuning& t = strategy.tuning;
  std::vector<Diagnostic> out;
  auto complain = [&](const char* key, std::string problem, std::string fix) { out.push_back({{}, key, std::move(problem), std::move(fix), ""}); };
  const bool adapters = t.low_rank();
  if (t.kind == TuningKind::full) {
    if (!t.trainable.empty()) complain("tuning.trainable", "with kind full every weight is trained", "Use kind: frozen, lora or qlora, or leave the key out");
    if (!t.targets.empty()) complain("tuning.targets", "with kind full there are no adapters", "Use kind: lora or qlora, or leave the key out");
    if (t.quantized) complain("tuning.quantized", "weights that are trained cannot be stored in 4 bits", "Use kind: lora, qlora, adapter or frozen, or leave the key out");
    return out;
  }
  if (!adapters && !t.targets.empty()) complain("tuning.targets", "kinds frozen and adapter have no low-rank adapters", "Use kind: lora or qlora, or leave the key out");
  if (t.decomposed && !adapters) complain("tuning.decomposed", "only low-rank adapters have a direction of their own", "Use kind: lora or qlora, or leave the key out");
  if (t.decomposed && (strategy.parallelism.degrees.tensor > 1 || profile.fused_qkv)) complain("tuning.decomposed", "DoRA is simulated as PEFT computes it: whole linear layers, each on its own", "Use framework huggingface and parallelism.tensor 1, or leave the key out");
  if (t.prompts() && (strategy.parallelism.degrees.tensor * strategy.parallelism.degrees.context > 1 || model.latent.present()))
    complain("tuning.kind", "the prompts of LLaMA-Adapter are simulated as LitGPT computes them: whole heads and sequences", "Use parallelism.tensor 1 and context 1, or kind: lora");
  if (t.four_bit() && t.format == FourBit::gptq && model.experts.experts > 0) complain("tuning.format", "experts in GPTQ's format are not simulated", "Use nf4");
  if (t.four_bit() && t.format == FourBit::gptq && t.prompts()) complain("tuning.format", "LLaMA-Adapter is LitGPT's, whose 4-bit weights are bitsandbytes'", "Use nf4, or kind qlora");
  if (t.four_bit() && profile.fused_gradient_accumulation)
    complain("tuning.kind", "the framework profile '" + profile.name + "' has no 4-bit weights", "Use lora, or framework huggingface, litgpt or deepspeed");
  if (!out.empty() || !all_else_holds) return out;

  out = selector_problems(model, strategy, profile, "tuning.trainable", t.trainable);
  const Inventory inventory = take_inventory(model, strategy, profile);
  for (const std::string& text : t.trainable) {
    const std::optional<Selector> selector = parse_selector(text);
    if (!selector || selector->first_expert < 0 || model.experts.experts == 0) continue;
    if (profile.grouped_experts) complain("tuning.trainable", "the framework profile '" + profile.name + "' keeps all experts of a layer in one tensor", "Name experts, or use framework huggingface-4");
    if (t.four_bit()) complain("tuning.trainable", "experts of a 4-bit layer are trained together or not at all", "Name experts, or use lora");
    if (strategy.parallelism.degrees.expert > 1) complain("tuning.trainable", "with expert parallelism ranks would train different numbers of experts", "Use parallelism.expert 1, or name experts");
  }
  for (const std::string& target : t.targets) {
    Strategy one = strategy;
    one.tuning.targets = {target};
    const bool found = std::any_of(inventory.weights.begin(), inventory.weights.end(), [&](const Named& w) {
      const std::string linear = w.name.substr(0, w.name.rfind('.'));
      return w.name.ends_with(".weight") && std::find(inventory.linears.begin(), inventory.linears.end(), parts_of(linear).front()) != inventory.linears.end() &&
             !adapted_parts(one.tuning, linear, parts_of(linear)).empty();
    });
    if (!found) complain("tuning.targets", "'" + target + "' is no linear layer of this model", near_parts(target, known_targets(inventory), target == "head" ? "The output layer is lm_head" : has_part(inventory, target) && target != "all" ? "What is no linear layer is trained itself: tuning.trainable: [" + target + "]" : ""));
  }
  if (out.empty() && inventory.trained == 0)
    complain(adapters ? "tuning.targets" : "tuning.trainable", "nothing is trained", adapters ? "Name linear layers: " + joined(inventory.linears) : "Name parts: " + joined(known_parts(inventory)));
  return out;
}

}  // namespace rehearse::strategies
