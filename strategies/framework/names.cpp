#include "strategies/framework/names.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include "strategies/framework/profile.h"

namespace rehearse::strategies {
namespace {

struct Names {
  std::vector<std::string_view> called;
  std::vector<std::string_view> profiles;
  std::string_view remark;   // before the profiles
};

const std::vector<Names>& all_names() {
  static const std::vector<Names> list{
      {{"megatron", "megatron-lm", "mcore", "megatron-core-moe"}, {"megatron-core", "megatron-bridge", "megatron-deepspeed", "megatron-2021"}, ""},
      {{"nemo", "nemo2", "bridge", "megatron-hub"}, {"megatron-bridge", "nemo-2024"}, ""},
      {{"automodel"}, {"nemo-automodel", "nemo-automodel-compile"}, ""},
      {{"hf", "transformers", "hugging-face", "trainer", "accelerate", "trl", "peft", "axolotl", "llama-factory", "unsloth", "swift", "ms-swift"}, {"huggingface", "huggingface-compile", "huggingface-4", "huggingface-mixed", "huggingface-liger", "deepspeed"}, ""},
      {{"liger", "liger-kernel"}, {"huggingface-liger"}, "Liger's kernels take the place of transformers' own. "},
      {{"zero", "zero1", "zero2", "zero3", "deepspeed-zero", "ds"}, {"deepspeed", "megatron-deepspeed"}, "ZeRO is data_parallel.kind: zero1, zero2 or zero3. "},
      {{"fsdp", "fsdp1", "pytorch-fsdp"}, {"llm-foundry", "fms-fsdp", "huggingface"}, "FSDP is data_parallel.kind: fsdp1 or fsdp2. "},
      {{"fsdp2"}, {"torchtitan", "torchtune", "huggingface"}, "FSDP2 is data_parallel.kind: fsdp2. "},
      {{"ddp", "pytorch", "torch", "native"}, {"huggingface", "torchtitan", "plain"}, "PyTorch runs the layers of a library. "},
      {{"titan", "torch-titan"}, {"torchtitan", "torchtitan-compile", "torchtitan-2025", "torchtitan-2025-compile"}, ""},
      {{"foundry", "composer", "mosaicml", "mosaic"}, {"llm-foundry"}, ""},
      {{"lightning", "fabric", "lit-gpt", "lit"}, {"litgpt", "litgpt-compile"}, ""},
      {{"neox", "gptneox"}, {"gpt-neox"}, ""},
      {{"jax", "xla", "t5x", "paxml", "pax"}, {"maxtext"}, ""},
      {{"tune", "torch-tune"}, {"torchtune", "torchtune-compile"}, ""},
      {{"bigscience", "megatron-ds"}, {"megatron-deepspeed", "megatron-2021"}, ""},
  };
  return list;
}

}  // namespace

std::string profiles_meant_by(const std::string& name) {
  std::string word = name;
  for (char& c : word) c = c == '_' || c == ' ' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const Names& names : all_names()) {
    if (std::find(names.called.begin(), names.called.end(), word) == names.called.end()) continue;
    std::string out = std::string(names.remark) + "Use ";
    for (std::size_t i = 0; i < names.profiles.size(); ++i)
      out += (i == 0 ? "" : i + 1 == names.profiles.size() ? " or " : ", ") + std::string(names.profiles[i]) + " (" + load_profile(std::string(names.profiles[i])).title + ")";
    return out;
  }
  return {};
}

}  // namespace rehearse::strategies
