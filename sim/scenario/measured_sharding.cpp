#include "sim/scenario/measured_sharding.h"

#include <algorithm>
#include <cctype>

#include "sim/scenario/measured_row.h"

namespace rehearse::scenario {
namespace {

namespace st = strategies;

bool has_word(const std::string& text, const std::string& word) {
  const auto letter = [&](std::size_t i) { return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i])) != 0; };
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    if ((at == 0 || !letter(at - 1)) && !letter(at + word.size())) return true;
  return false;
}

/// The number behind `word` and at most a few signs: "zero1=8", "Zero1: 8", "zero1 size 8".
int number_after(const std::string& text, const std::string& word) {
  const std::size_t at = text.find(word);
  if (at == std::string::npos) return 0;
  std::size_t i = at + word.size();
  for (const char* filler : {" ", "size", "group", "of", "=", ":", " "})
    while (text.compare(i, std::string(filler).size(), filler) == 0) i += std::string(filler).size();
  int n = 0;
  for (; i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) != 0 && n < 1'000'000; ++i) n = n * 10 + (text[i] - '0');
  return n;
}

}  // namespace

int shard_group(const config::CsvRow& row, int data) {
  const std::string note = lower(cell(row, "note"));
  int group = number_after(note, "shard group");
  if (lower(cell(row, "sharding")) == "zero1" && lower(cell(row, "framework")).starts_with("intern")) group = std::max(group, number_after(note, "zero1"));
  if (const int replicas = number_after(note, "dcn_data_parallelism"); replicas > 0 && data % replicas == 0) group = data / replicas;
  return group > 0 && group < data && data % group == 0 ? group : 0;
}

void apply_rematerialisation(const config::CsvRow& row, st::Memory& memory) {
  const std::string note = lower(cell(row, "note"));
  if (!contains(note, "remat_policy")) return;
  if (contains(note, "remat_policy=full")) memory.recompute = st::Recompute::full;
  else if (contains(note, "remat_policy=none")) memory.recompute = st::Recompute::none;
  else memory.recompute = st::Recompute::selective;
  if (memory.recompute != st::Recompute::selective) return;
  if (contains(note, "except_mlp")) memory.recompute_modules = {contains(note, "with_context") ? "attention_products" : "attention_projections"};
  if (contains(note, "save_qkv_proj")) memory.recompute_modules = {"qkv_products"};
  // Paxml's names of JAX's policies (praxis/layers/checkpoint_policy.py); a fused attention kernel is no product to them.
  if (contains(note, "save_dot_with_no_batch_dim") || contains(note, "save_dot_only")) memory.recompute_modules = {"weight_products"};
  if (contains(note, "save_qkv_out_proj")) memory.recompute_modules = {"attention_projections"};
}

void apply_nemo(const std::string& model, const std::string& sharding, const std::string& release, st::FrameworkProfile& profile, st::Strategy& strategy) {
  // NVIDIA/NeMo at 6f2c6fdaff (2025-05) to 8cfedd7203 (2025-09): no recipe fuses the router, MixtralConfig, of which Grok-1 is one, fuses no permutation.
  profile.fused_router = false;
  if (contains(lower(model), "mixtral") || contains(lower(model), "grok")) profile.fused_permute = false;
  // NVIDIA/NeMo at v2.2.0 to v2.4.0: DeepSeekConfig has apply_rope_fusion false.
  if (contains(lower(model), "deepseek")) profile.rope = st::Fusion::eager;
  // docs.nvidia.com/nemo-framework, performance summary of 25.04: the first that states factors computed in the current step.
  profile.current_scaling = release.empty() || release >= "25.04";
  // NVIDIA/NeMo at v2.3.0 (25.04) knows nothing of DeepEP (nemo/lightning/pytorch/callbacks/deepep.py came in v2.4.0, 25.07), and all its models say alltoall.
  if (!release.empty() && release < "25.07") profile.dispatcher = st::Dispatcher::all_to_all;
  // DeepSeekConfig and Llama4Config, the models with shared experts: moe_shared_expert_overlap is true (v2.2.0 to v2.4.0).
  if (profile.dispatcher == st::Dispatcher::all_to_all) profile.overlap_shared_experts = true;
  if (sharding != "fsdp" && sharding != "hsdp") return;
  strategy.training.fused_gradient_accumulation = false;
  profile = st::with_choices(profile, strategy);
}

std::optional<std::string> node_by_fabric(const std::string& gpu, const std::string& interconnect) {
  const std::string net = lower(interconnect);
  // Google Cloud's machines with H100s; A3 alone was the first of them, A3 High.
  if (gpu == "h100-sxm" && (contains(net, "tcpxo") || contains(net, "a3 mega") || contains(net, "a3-mega") || contains(net, "a3mega"))) return "a3-mega";
  if (gpu == "h100-sxm" && (contains(net, "tcpx") || has_word(net, "a3"))) return "a3-high";
  if (gpu == "a100-80gb-sxm")
    for (const char* four : {"4x100", "4 x 100", "4x 100", "4*100", "4 * 100"})
      if (contains(net, four)) return "hgx-a100-4x100";
  return std::nullopt;
}

}  // namespace rehearse::scenario
