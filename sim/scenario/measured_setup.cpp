#include "sim/scenario/measured_setup.h"

#include <algorithm>
#include <optional>
#include <regex>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "hwmodels/device/gpu.h"
#include "sim/scenario/measured_columns.h"
#include "sim/scenario/row_rules.h"

namespace rehearse::scenario {
namespace {

bool more_than_one(const config::CsvRow& row, const char* column) { return integer(row, column).value_or(1) > 1; }

bool compiled(const config::CsvRow& row) { return cell(row, "torch_compile").starts_with("y"); }

/// Megatron before FlashAttention or after it.
std::string megatron_of(const config::CsvRow& row, const std::string& gpu) {
  const std::string attention = cell(row, "attention");
  const bool fp16_before_hopper = gpu.starts_with("a100") && cell(row, "precision") == "fp16" && attention != "flash";
  return gpu.starts_with("v100") || attention == "unfused" || fp16_before_hopper ? "megatron-2021" : "megatron-core";
}

/// A profile whose kernels may be compiled has a file for that, `<profile>-compile`. Transformers' layers in a checkpoint are not compiled with
/// FlashAttention: its call asks values of position_ids (modeling_flash_attention_utils.py, _is_packed_sequence), and a checkpoint whose
/// function breaks the graph runs without torch.compile (torch/utils/checkpoint.py, Note: torch.compile and checkpoint).
std::string compiled_form(const config::CsvRow& row, const std::string& profile) {
  const std::string attention = cell(row, "attention");   // "flash" may be PyTorch's own call
  if (profile == "huggingface" && cell(row, "recompute") == "full" && (attention == "flash2" || attention == "flash3" || attention == "flash4")) return profile;
  const std::vector<std::string> names = strategies::profile_names();
  return compiled(row) && std::find(names.begin(), names.end(), profile + "-compile") != names.end() ? profile + "-compile" : profile;
}

/// Neither name nor source is known: what a job of these degrees, this sharding and this age mostly ran on.
std::pair<std::string, std::string> likely_profile(const config::CsvRow& row, const std::string& gpu) {
  const std::string sharding = lower(cell(row, "sharding")), task = cell(row, "task");
  bool split = cell(row, "sp") == "y";
  for (const char* degree : {"tp", "pp", "vpp", "cp", "ep"}) split = split || more_than_one(row, degree);
  const bool tuning = task == "sft" || task == "lora" || task == "qlora";
  if (tuning && !split && contains(sharding, "fsdp")) return {"huggingface", "fine-tuning under FSDP"};
  if (contains(sharding, "fsdp") || contains(sharding, "fully sharded")) return {compiled_form(row, split ? "torchtitan" : "fms-fsdp"), "sharded by FSDP"};
  if (contains(sharding, "zero2") || contains(sharding, "zero3") || contains(sharding, "zero-2") || contains(sharding, "zero-3") || contains(sharding, "deepspeed")) return {"deepspeed", "sharded by ZeRO"};
  if (split) return {megatron_of(row, gpu), "split by tensor, pipeline, context or expert parallelism"};
  if (tuning) return {"huggingface", "fine-tuning"};
  if (contains(sharding, "zero1") || contains(sharding, "zero-1")) return {"deepspeed", "sharded by ZeRO"};
  if (integer(row, "n_experts").value_or(0) > 0 || integer(row, "n_gpus").value_or(1) > 16) return {megatron_of(row, gpu), "pretraining on many GPUs"};
  return {"plain", "one node, nothing sharded"};
}

/// The profile that readings/frameworks.yaml finds, or the one of the framework's own name; "" where nobody knows it.
std::string known_profile(const config::CsvRow& row) {
  if (const std::string found = first_use("frameworks", RowFacts(row).with("release", release_of(row))); !found.empty()) return compiled_form(row, found);
  const std::string name = plain_name(cell(row, "framework"));
  for (const std::string& profile : strategies::profile_names())
    if (plain_name(profile) == name) return compiled_form(row, profile);
  return "";
}

/// The profile of what the row says, ZeRO aside.
ProfileChoice plain_profile_of(const config::CsvRow& row) {
  if (std::string known = known_profile(row); !known.empty()) {
    // FSDP of Megatron's layers in pretraining is Megatron's own. Elsewhere, and beside 4-bit weights, NeMo runs Hugging Face's
    // modelling code.
    const std::string sharding = lower(cell(row, "sharding"));
    const bool whole = known == "megatron-core" || is_nvidia_recipe(known);
    if (whole && sharding == "fsdp" && cell(row, "task") == "pretrain") return {std::move(known), "sharded by FSDP, taken as Megatron-FSDP"};
    if (whole && (sharding == "fsdp" || sharding == "hsdp" || sharding == "fsdp2")) return {compiled_form(row, "torchtitan"), "sharded by FSDP, simulated as torchtitan: the profile " + known + " is not"};
    if (whole && sharding == "zero3") return {"deepspeed", "ZeRO-3, simulated as deepspeed: the profile " + known + " has none"};
    if (whole && cell(row, "task") == "qlora") return {"huggingface", "4-bit, simulated as huggingface: the profile " + known + " is not"};
    return {std::move(known), ""};
  }
  const std::string framework = cell(row, "framework");
  const auto [profile, why] = likely_profile(row, lower(cell(row, "gpu")));
  const bool nameless = framework.empty() || framework == "various";
  return {profile, fmt::format("{}, simulated as {}: {}", nameless ? "framework not stated" : "no profile of framework '" + framework + "'", profile, why), !nameless};
}

}  // namespace

ProfileChoice profile_of(const config::CsvRow& row) {
  ProfileChoice choice = plain_profile_of(row);
  // Hugging Face's trainers have ZeRO from DeepSpeed's engine: fp32 masters, its buckets, its own casts (transformers and accelerate,
  // integrations and utils of deepspeed).
  if (choice.name == "huggingface" && lower(cell(row, "sharding")).starts_with("zero")) choice.name = "deepspeed";
  return choice;
}

std::string gpu_of(const config::CsvRow& row) {
  const std::string stated = cell(row, "gpu");
  for (const std::string& name : hwmodels::gpu_names())
    if (name == stated) return name;
  const std::string text = plain_name(stated);
  for (const std::string& name : hwmodels::gpu_names())
    if (plain_name(name) == text) return name;
  if (std::string found = first_use("gpus", RowFacts(row).with("gpu", text)); !found.empty()) return found;
  throw NotSimulated{"no data of GPU '" + stated + "'"};
}

std::optional<std::string> gpu_of_stated_memory(const config::CsvRow& row, const std::string& gpu) {
  static const std::regex kClass(R"((\d{1,6}(?:\.\d{1,6})?) GiB class)");
  const std::string note = cell(row, "note");
  std::smatch found;
  if (!std::regex_search(note, found, kClass)) return std::nullopt;
  constexpr double kGib = 1024.0 * 1024 * 1024;
  const double stated = std::stod(found[1]);
  const auto off = [&](const std::string& name) { return std::abs(static_cast<double>(hwmodels::load_gpu(name).memory.value) / kGib / stated - 1); };
  if (off(gpu) <= 0.02) return std::nullopt;
  const std::string chip = gpu.substr(0, gpu.find('-'));
  std::optional<std::string> best;
  for (const std::string& name : hwmodels::gpu_names())
    if (contains(name, chip) && off(name) < 0.02 && (!best || off(name) < off(*best))) best = name;
  return best;
}

std::string node_of(const config::CsvRow& row, const std::string& gpu) {
  if (std::string found = first_use("nodes", RowFacts(row).with("gpu", gpu)); !found.empty()) return found;
  throw NotSimulated{"no node design for '" + gpu + "'"};
}

void apply_network(const config::CsvRow& row, hwmodels::ClusterDescription& cluster, std::vector<std::string>& notes) {
  // "400 Gbps", "1600 Gbps RoCE per node", "8x ConnectX-7 400 Gbps", "25 Gb/s Ethernet"; not "8x400 Gb", nor "400 Gb/s per GPU".
  static const std::regex kRate(R"((^|[^0-9x.])([0-9]{1,4}) ?(Gbps|Gb(it)?/s Ethernet))"), kCards(R"((^|[^0-9])([0-9]{1,2})x [A-Za-z][^;,]*[^0-9;,]([0-9]{1,4}) ?Gbps)");
  const std::string net = cell(row, "interconnect");
  std::smatch found;
  hwmodels::NicDesign& nic = cluster.node.nic;
  if (nic.count == 0 || contains(net, "per GPU") || contains(net, " x ") || !std::regex_search(net, found, kRate)) return;
  double gbps = std::stod(found[2].str());
  if (std::regex_search(net, found, kCards)) gbps = std::stod(found[2].str()) * std::stod(found[3].str());
  const double line = nic.bandwidth.value * 8 / 1e9;
  if (gbps < 1 || std::abs(gbps - nic.count * line) < 1) return;
  nic.count = std::max(1, static_cast<int>(std::ceil(gbps / line)));
  nic.bandwidth = BytesPerSecond{gbps / nic.count * 1e9 / 8};
  notes.push_back(fmt::format("{} Gb/s per node, as stated, in {} cards", gbps, nic.count));
}

std::string sharding_of(const config::CsvRow& row, const std::string& profile, std::vector<std::string>& notes) {
  const std::string stated = lower(cell(row, "sharding")), note = cell(row, "note");
  if (stated.empty() && contains(note, "ZeRO-3 for full-parameter")) return cell(row, "task") == "sft" ? "zero3" : "zero2";
  for (const char* word : {"none", "zero1", "zero2", "zero3", "fsdp", "hsdp", "megatron-fsdp"})
    if (stated == word) return stated;
  static const std::pair<const char*, const char*> kWords[] = {{"zero-1", "zero1"}, {"zero1", "zero1"}, {"stage 1", "zero1"}, {"zero-2", "zero2"}, {"zero2", "zero2"}, {"stage 2", "zero2"}, {"zero-3", "zero3"}, {"zero3", "zero3"},
                                                               {"stage 3", "zero3"}, {"megatron-fsdp", "megatron-fsdp"}, {"hsdp", "hsdp"}, {"hybrid", "hsdp"}, {"fsdp", "fsdp"}, {"fully sharded", "fsdp"}, {"ddp", "none"},
                                                               {"replicated", "none"}, {"distributed optimizer", "zero1"}};
  for (const auto& [word, ours] : kWords)
    if (contains(stated, word)) return ours;
  const bool shards = profile.starts_with("torchtitan") || profile.starts_with("fms-fsdp") || profile.starts_with("torchtune") || profile == "llm-foundry";
  const bool several = integer(row, "n_gpus").value_or(1) > 1 || more_than_one(row, "dp");
  const std::string usual = !several ? "" : shards ? "fsdp" : contains(stated, "deepspeed") ? "zero1" : "";
  if (!usual.empty()) notes.push_back(fmt::format("sharding {}, taken as {}{}", stated.empty() ? "not stated" : "stated as '" + stated + "'", usual, shards ? "" : ", more where that does not fit"));
  else if (!stated.empty()) notes.push_back("sharding stated as '" + stated + "', taken as not stated");
  return usual;
}

}  // namespace rehearse::scenario
