#include "sim/scenario/measured_tuning.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "sim/scenario/measured_row.h"

namespace rehearse::scenario {
namespace {

namespace st = strategies;

/// LitGPT's switches "q=true k=false ... head=true" and PEFT's module names, in our words.
std::vector<std::string> targets_in(const std::string& text) {
  static const std::pair<const char*, const char*> kSwitches[] = {{"q=true", "q_proj"}, {"k=true", "k_proj"}, {"v=true", "v_proj"}, {"proj=true", "o_proj"}, {"mlp=true", "mlp"}, {"head=true", "lm_head"}};
  std::vector<std::string> out;
  for (const auto& [word, name] : kSwitches)
    if (contains(text, word)) out.emplace_back(name);
  return out;
}

std::vector<std::string> words_of(const std::string& text) {
  static const std::map<std::string, std::string> ours{{"q", "q_proj"}, {"k", "k_proj"}, {"v", "v_proj"}, {"o", "o_proj"}, {"proj", "o_proj"}, {"head", "lm_head"}, {"all", "all-linear"}, {"linear", "all-linear"},
                                                       {"query", "q_proj"}, {"key", "k_proj"}, {"value", "v_proj"}, {"dense", "o_proj"}};
  std::vector<std::string> out;
  std::string word;
  for (const char c : text + ",") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-') {
      word += c;
      continue;
    }
    if (!word.empty()) out.push_back(ours.contains(word) ? ours.at(word) : word);
    word.clear();
  }
  return out;
}

}  // namespace

RowTuning tuning_of(const config::CsvRow& row) {
  RowTuning out;
  const std::string task = cell(row, "task"), note = cell(row, "note"), source = cell(row, "source"), precision = cell(row, "precision");
  const bool quantised = task == "qlora" || precision == "nf4" || contains(note, "int4 (GPTQ) base");
  if (task != "lora" && task != "qlora") {
    if (quantised) out.not_simulated = "4-bit weights without adapters are not simulated";
    return out;
  }
  for (const char* other : {"prefix", "prompt tuning", "IA3"})
    if (contains(note, other)) out.not_simulated = std::string("tuning by '") + other + "' is not simulated";
  st::Tuning& t = out.tuning;
  if (contains(note, "task: finetune adapter")) {  // LitGPT's recipes of that name
    t.kind = contains(note, "task: finetune adapter_v2") ? st::TuningKind::adapter_v2 : st::TuningKind::adapter;
    t.quantized = quantised;
    t.double_quantization = !contains(note, "bnb.nf4") || contains(note, "bnb.nf4-dq");
    return out;
  }
  t.decomposed = contains(note, "DoRA");
  t.kind = quantised ? st::TuningKind::qlora : st::TuningKind::lora;
  if (contains(note, "GPTQ")) t.format = st::FourBit::gptq;
  // bitsandbytes "-dq" names double quantisation.
  if (quantised) t.double_quantization = !contains(note, "bnb.nf4") || contains(note, "bnb.nf4-dq");
  const bool qwen = contains(source, "QwenLM/Qwen@"), litgpt = cell(row, "framework") == "litgpt";
  // Dropout: QwenLM/Qwen finetune.py, LitGPT's recipes, ms-swift's SftArguments and universal-llm-trainer's config_lora have 0.05, fms-acceleration's
  // scripts/benchmarks/scenarios.yaml and fsdp_qlora's train.py 0.1, PEFT's default is 0.
  const bool small = qwen || litgpt || contains(source, "modelscope/ms-swift") || contains(source, "universal-llm-trainer");
  t.dropout = small ? 0.05 : contains(source, "fms-acceleration") || contains(source, "fsdp_qlora") ? 0.1 : 0;

  constexpr double kLargestRank = 65536;   // of tuning.rank
  if (const auto stated = row.find("lora_rank") ? row.number("lora_rank") : std::nullopt) {
    if (!(*stated >= 1 && *stated <= kLargestRank)) throw NotSimulated{"lora_rank is not between 1 and 65536"};
    t.rank = static_cast<std::int64_t>(*stated);
  }
  else if (const auto said = number_after(note, {"LoRA r=", "LoRA default r=", "LoRA rank "})) t.rank = *said;
  else {
    t.rank = qwen ? 64 : 8;  // QwenLM/Qwen finetune.py, LoraArguments; PEFT's and LitGPT's default
    out.notes.push_back("LoRA rank not stated, taken as " + std::to_string(t.rank));
  }
  if (const std::string stated = cell(row, "lora_targets"); !stated.empty()) t.targets = words_of(stated);
  else if (auto switches = targets_in(note); !switches.empty()) t.targets = std::move(switches);
  else if (contains(note, "on MLP")) t.targets = {"mlp"};
  else if (qwen) t.targets = {"all-linear"};  // finetune.py: c_attn, c_proj, w1, w2
  else out.notes.push_back("LoRA targets not stated, taken as queries and values");
  if (contains(note, "embedding and output layer also trained")) t.trainable = {"embedding", "head"};
  return out;
}

}  // namespace rehearse::scenario
