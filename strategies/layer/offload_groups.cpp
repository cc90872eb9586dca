#include "strategies/layer/offload_groups.h"

#include <algorithm>

#include "strategies/layer/graph_capture.h"

namespace rehearse::strategies {

const std::vector<std::string>& offload_module_names() {
  static const std::vector<std::string> names{"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act", "fused_group_mlp"};
  return names;
}

namespace {

bool one_of(const std::string& name, std::initializer_list<const char*> names) { return std::find(names.begin(), names.end(), name) != names.end(); }

/// The module that a node of attention belongs to, between its norm and its output product.
const char* attention_module(const std::string& name) {
  for (const char* begins : {"attention", "scores", "softmax", "contiguous"})
    if (name.starts_with(begins)) return "core_attn";
  return name == "o_proj" ? "attn_proj" : "qkv_linear";
}

/// "" of what no module has.
std::string module_of(const LowerContext& c, const model::Layer& layer, const Node& node, bool behind_norm, bool behind_mixer) {
  // Transformer Engine's products have the norm before them inside, if it is not made again; latent attention's and a router's are apart.
  const bool norm_inside = c.profile.transformer_engine && !node.discard_output;
  const std::string& name = node.name;
  if (name == "input norm") return layer.mixer != model::Mixer::attention ? "" : norm_inside && !c.model.latent.present() ? "qkv_linear" : "attn_norm";
  if (name == "mlp norm") return layer.moe || !norm_inside ? "mlp_norm" : "";
  if (!behind_mixer) return behind_norm && layer.mixer == model::Mixer::attention ? attention_module(name) : "";
  if (!name.starts_with("experts ")) return "";
  const auto& modules = c.strategy.memory.offload.modules;
  if (std::find(modules.begin(), modules.end(), "fused_group_mlp") != modules.end()) return "fused_group_mlp";
  return one_of(name, {"experts gate_up", "experts fc1"}) ? "expert_fc1" : name == "experts activation" ? "moe_act" : "";
}

}  // namespace

void mark_offloaded(const LowerContext& c, const model::Layer& layer, Tape& tape) {
  const std::vector<std::string>& chosen = c.strategy.memory.offload.modules;
  if (chosen.empty()) return;
  std::vector<OffloadGroup> groups;
  bool behind_norm = false, behind_mixer = layer.mixer == model::Mixer::none;
  for (int n = 0; n < static_cast<int>(tape.nodes.size()); ++n) {
    const Node& node = tape.nodes[static_cast<std::size_t>(n)];
    const bool mixed = node.name == kMixerResidual, over = node.name == "mlp residual";
    const std::string module = mixed || over ? "" : module_of(c, layer, node, behind_norm, behind_mixer);
    behind_norm = behind_norm || node.name == "input norm";
    behind_mixer = behind_mixer || mixed;
    for (OffloadGroup& group : groups)
      if ((mixed && group.module == "attn_norm") || (over && group.module == "mlp_norm")) group.commit = n;
    if (std::find(chosen.begin(), chosen.end(), module) == chosen.end()) continue;
    auto it = std::find_if(groups.begin(), groups.end(), [&](const OffloadGroup& g) { return g.module == module; });
    if (it == groups.end()) it = groups.insert(groups.end(), {.module = module});
    it->nodes.push_back(n);
    if (!module.ends_with("_norm")) it->commit = n;
  }
  for (OffloadGroup& group : groups)
    if (group.commit >= 0) tape.offload_groups.push_back(std::move(group));
  std::sort(tape.offload_groups.begin(), tape.offload_groups.end(), [](const OffloadGroup& a, const OffloadGroup& b) { return a.commit < b.commit; });
}

}  // namespace rehearse::strategies
