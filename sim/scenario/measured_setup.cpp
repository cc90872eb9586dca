#include "sim/scenario/measured_setup.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <regex>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "hwmodels/device/gpu.h"
#include "sim/scenario/measured_columns.h"
#include "sim/scenario/measured_sharding.h"

namespace rehearse::scenario {
namespace {

bool more_than_one(const config::CsvRow& row, const char* column) { return integer(row, column).value_or(1) > 1; }

using Release = std::array<int, 3>;

/// The first "1.2.3" or "1.2" after a name; nothing where none is stated.
std::optional<Release> release_after(const std::string& text, const std::string& name) {
  const std::size_t at = text.find(name);
  std::smatch found;
  static const std::regex kRelease(R"(^([0-9]{1,4})\.([0-9]{1,4})(\.([0-9]{1,4}))?)");
  const std::string rest = at == text.npos ? "" : text.substr(at + name.size());
  if (!std::regex_search(rest, found, kRelease)) return std::nullopt;
  return Release{std::stoi(found[1].str()), std::stoi(found[2].str()), found[4].matched ? std::stoi(found[4].str()) : 0};
}

bool compiled(const config::CsvRow& row) { return cell(row, "torch_compile").starts_with("y"); }

/// Letters and digits only: "Megatron-LM" and "megatron_lm" are one name.
std::string plain_name(const std::string& text) {
  std::string out;
  for (const char c : lower(text))
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) out += c;
  return out;
}

/// Megatron before FlashAttention or after it.
std::string megatron_of(const config::CsvRow& row, const std::string& gpu) {
  const std::string attention = cell(row, "attention");
  const bool fp16_before_hopper = gpu.starts_with("a100") && cell(row, "precision") == "fp16" && attention != "flash";
  return gpu.starts_with("v100") || attention == "unfused" || fp16_before_hopper ? "megatron-2021" : "megatron-core";
}

/// A profile whose kernels may be compiled has a file for that, `<profile>-compile`.
std::string compiled_form(const config::CsvRow& row, const std::string& profile) {
  const std::vector<std::string> names = strategies::profile_names();
  return compiled(row) && std::find(names.begin(), names.end(), profile + "-compile") != names.end() ? profile + "-compile" : profile;
}

/// Lightning-AI/lightning-thunder thunder/benchmarks/benchmark_litgpt.py: LitGPT's model in a loop of its own. PyTorch's cross-entropy on
/// the 16-bit logits, whose name lives as long as their graph; AdamW with fused, built on parameters in bf16; FSDP1 or FSDP2 as asked.
void apply_thunder_benchmark(const std::string& note, strategies::FrameworkProfile& profile) {
  profile.loss = strategies::LossKind::native;
  profile.holds_output = true;
  profile.fused_optimizer = true;
  profile.fsdp2 = contains(note, "FSDP2");
}

/// Frameworks under the names of their releases, forks and relatives. Letters and digits only.
const std::map<std::string, std::string>& relatives() {
  static const std::map<std::string, std::string> list{
      {"megatron", "megatron-core"}, {"megatroncore", "megatron-core"}, {"mcore", "megatron-core"}, {"megatronllama", "megatron-core"}, {"nemomegatron", "megatron-bridge"},
      {"nemoframework", "megatron-bridge"}, {"simumax", "megatron-core"}, {"neox", "gpt-neox"}, {"gptneox", "gpt-neox"}, {"composer", "llm-foundry"}, {"mosaicml", "llm-foundry"},
      {"fmsfsdp", "fms-fsdp"}, {"fms", "fms-fsdp"}, {"olmo", "fms-fsdp"}, {"fairscale", "fms-fsdp"}, {"fsdp", "fms-fsdp"}, {"pytorchfsdp", "fms-fsdp"}, {"fsdp2", "torchtitan"},
      {"lightning", "litgpt"}, {"litllama", "litgpt"}, {"bmtrain", "deepspeed"}, {"colossalai", "deepspeed"}, {"automodel", "nemo-automodel"}, {"internlm", "internevo"}, {"paxml", "maxtext"} /* both are steps compiled by XLA */, {"fmsacceleration", "huggingface"},
      {"transformers", "huggingface"}, {"huggingface", "huggingface"}, {"accelerate", "huggingface"}, {"peft", "huggingface"}, {"trl", "huggingface"}, {"axolotl", "huggingface"}, {"fmshftuning", "huggingface"},
      {"llamafactory", "huggingface"}, {"swift", "huggingface"}, {"msswift", "huggingface"}, {"llamarecipes", "huggingface"}, {"vectorlm", "huggingface"}, {"unsloth", "huggingface"}, {"pytorch", "plain"}};
  return list;
}

/// What a text that names no framework in its own column says of itself.
std::string named_in(const std::string& text) {
  static const std::pair<const char*, const char*> kWords[] = {
      {"Nemotron", "megatron-bridge"},  // NVIDIA's own runs: overlapped communication, no dropout
      {"Megatron-LLaMA", "megatron-core"}, {"Parallel Folding", "megatron-core"}, {"Megatron-Core", "megatron-core"}, {"Megatron Core", "megatron-core"},
      {"Pythia", "gpt-neox"}, {"NeoX", "gpt-neox"},
      {"Megatron", "megatron-2021"}, {"MT-NLG", "megatron-2021"}, {"BLOOM", "megatron-2021"}, {"bigscience", "megatron-2021"}, {"GLM-130B", "megatron-2021"}, {"SC21", "megatron-2021"},
      {"DeepSpeed", "deepspeed"}, {"BMTrain", "deepspeed"},
      {"fms-fsdp", "fms-fsdp"}, {"torchtune", "torchtune"}, {"nanotron", "nanotron"}, {"litgpt", "litgpt"}, {"lit-gpt", "litgpt"}, {"llm-foundry", "llm-foundry"},
      {"peft", "huggingface"}, {"transformers", "huggingface"}, {"axolotl", "huggingface"}, {"huggingface/trl", "huggingface"}, {"LLaMA-Factory", "huggingface"}, {"fms-acceleration", "huggingface"}};
  for (const auto& [word, profile] : kWords)
    if (contains(text, word)) return profile;
  return "";
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

std::string known_profile(const config::CsvRow& row) {
  const std::string f = lower(cell(row, "framework")), source = cell(row, "source") + " " + cell(row, "note"), gpu = cell(row, "gpu");
  const bool old_megatron = cell(row, "attention") == "unfused" || contains(source, "arXiv 2104.04473") || contains(source, "2205.05198") ||
                            contains(source, "2021.png") /* Megatron-LM's README in 2021 */ || gpu.starts_with("v100");
  if (f == "megatron-lm" && (contains(source, "Megatron-LM 8aa4619") || contains(source, "images/tables.tex"))) return "megatron-2020";  // commits of 2021-03 and 2020-09
  if (f == "megatron-lm") return old_megatron && !contains(source, "tests/functional_tests") ? "megatron-2021" : "megatron-core";
  if (f == "megatron-deepspeed") return contains(source, "HF + Deepspeed") ? "deepspeed" : "megatron-2021";
  if (const std::string release = release_of(row); f == "nemo" && release < "25" && !release.empty()) return "nemo-2024";
  if (f == "megatron-bridge" || f == "nemo") return "megatron-bridge";
  if (f == "torchtitan" || (f == "various" && contains(source, "torchtitan"))) {
    if (!compiled(row)) return "torchtitan";
    return contains(source, "_202412_") || contains(source, "loss not compiled") ? "torchtitan-compile-2024" : "torchtitan-compile";  // the loss was compiled later
  }
  // Until August 2024 the gathered input was kept; bench_cluster measured before that.
  if (f == "nanotron") return contains(source, "old_bench") ? "nanotron-2024" : "nanotron";
  // DeepSpeed's tutorials of 2020 train Megatron-LM's GPT-2 (DeepSpeedExamples/Megatron-LM).
  if (f == "deepspeed" && (contains(source, "docs/_tutorials/zero") || contains(source, "DeepSpeedExamples Megatron-LM"))) return "deepspeed-2020";
  // FPDT's baselines are Megatron-DeepSpeed's own layers.
  if (f == "deepspeed") return contains(source, "ulysses-offload") ? "megatron-deepspeed" : "deepspeed";
  // The Qwen scripts run DeepSpeed on several GPUs.
  if (f == "hf" && contains(source, "scripts use DeepSpeed") && cell(row, "n_gpus") != "1") return "deepspeed";
  if (f == "hf") return "huggingface";
  if (f == "various" || f.empty()) return compiled_form(row, named_in(source));
  for (const std::string& name : strategies::profile_names())
    if (name == f) return compiled_form(row, name);
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
  const std::string framework = cell(row, "framework"), name = plain_name(framework);
  for (const std::string& profile : strategies::profile_names())
    if (plain_name(profile) == name) return {compiled_form(row, profile), ""};
  if (const auto it = relatives().find(name); it != relatives().end()) return {compiled_form(row, it->second), ""};
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

void apply_wording(const config::CsvRow& row, strategies::FrameworkProfile& profile, std::vector<std::string>& notes) {
  using strategies::Fusion;
  using strategies::LossKind;
  const std::string note = cell(row, "note"), text = lower(note);
  if (compiled(row) && !profile.compiled) notes.push_back(fmt::format("torch.compile stated, simulated without: the profile {} has no compiled form", profile.name));
  // torchtune's recipes of before August 2024, and tables that compare with them: the whole logits.
  if (profile.name.starts_with("torchtune") && contains(note, "torch.nn.CrossEntropyLoss")) profile.loss = profile.compiled ? LossKind::upcast_compiled : LossKind::upcast;
  // Rows of the embedding and the head: "vocab padded to multiple of 8".
  static const std::regex kPadded(R"(vocab(?:ulary)? padded to (?:a )?multiples? of ([0-9]{1,5}))");
  if (std::smatch found; std::regex_search(text, found, kPadded) && std::stoi(found[1].str()) > 0) profile.vocab_multiple = std::stoi(found[1].str());
  // Megatron until 2021: torch.nn.parallel.DistributedDataParallel in place of its own, which reduces after backward (megatron/training.py, get_model).
  if (contains(note, "DDP-impl torch")) {
    profile.overlap_gradient_reduce = true;
    profile.flattens_gradients = false;
  }
  // LitGPT's longest batch is the run's first (finetune/lora.py of 2023, longest_seq_ix): no graph of a micro-batch before it.
  if (contains(note, "memory peak set by longest")) profile.holds_last_graph = false;
  if (profile.name.starts_with("litgpt") && contains(cell(row, "source"), "lightning-thunder")) apply_thunder_benchmark(note, profile);
  // Qwen's own modeling_qwen.py with flash-attn and its csrc/layer_norm, which its docker image of the table's time installs: apply_rotary_pos_emb,
  // RMSNorm. Logits are not upcast; autocast does that inside the loss, DeepSpeed's engine has none.
  const bool qwen = contains(cell(row, "source"), "QwenLM/Qwen@");
  if (qwen) {
    profile.rope_form = strategies::RopeForm::widened;
    profile.norm = Fusion::fused;
    profile.copies_shifted_logits = true;
    if (profile.name == "deepspeed") profile.loss = LossKind::native;
  }
  // "DeepSpeed 0.14.2": how its ZeRO-1 and 2 bring parameters back from the CPU.
  static const std::regex kDeepSpeed(R"(DeepSpeed v?0\.([0-9]{1,3})(?:\.([0-9]{1,3}))?)");
  if (std::smatch found; profile.name == "deepspeed" && std::regex_search(note, found, kDeepSpeed)) {
    using strategies::OffloadReturn;
    const int release = 1000 * std::stoi(found[1].str()) + (found[2].matched ? std::stoi(found[2].str()) : 0);
    profile.offload_return = release < 9000 ? OffloadReturn::under_update : release < 14001 ? OffloadReturn::cast : release < 17000 ? OffloadReturn::wide : OffloadReturn::narrow;
  }
  // Megatron-DeepSpeed of 2024: the maximum is taken off into a second tensor (megatron/core/tensor_parallel/cross_entropy.py).
  if (contains(cell(row, "source"), "ulysses-offload")) profile.loss = LossKind::sharded;
  // xtuner/model/modules/dispatch/llama.py (June 2024): repeat_kv, then the all-to-alls of pre_process_for_sequence_parallel_attn.
  if (contains(cell(row, "source"), "InternLM/xtuner")) profile.exchanges_repeated_kv = true;
  // Which kernel of attention, how it is split over context-parallel ranks, and norms as a kernel of their own.
  const std::string attention = cell(row, "attention");
  if (attention == "flash1") profile.attention = model::AttentionKernel::flash1;
  if (attention == "flash2") profile.attention = model::AttentionKernel::flash2;
  if (attention == "cudnn") profile.attention = model::AttentionKernel::cudnn;
  if (attention == "cudnn-9.13") profile.attention = model::AttentionKernel::cudnn_9_13;
  if (attention == "mem-efficient") profile.attention = model::AttentionKernel::mem_efficient;
  if (attention == "flash1" || attention == "flash2" || attention == "mem-efficient" || attention.starts_with("cudnn")) profile.cudnn_attention_from = 0;
  // PyTorch prefers cuDNN's attention on Hopper and Blackwell from cuDNN 9.15.1 on, which its builds have had since 2.11
  // (ATen/native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention; huggingface/transformers pull request 48163).
  const auto torch = release_after(cell(row, "source") + " " + note, "PyTorch ");
  // On AMD's GPUs backward is Triton's before AOTriton 0.11, which came with PyTorch 2.9 (pytorch/pytorch pull request 161754).
  const auto aotriton = release_after(note, "AOTriton ");
  profile.triton_backward = aotriton ? *aotriton < Release{0, 11, 0} : torch && *torch < Release{2, 9, 0};
  if (contains(text, "sdpa") && torch && *torch >= Release{2, 11, 0} && attention.find("2") == std::string::npos) {
    profile.cudnn_attention_from = 90;
    profile.cudnn_attention = model::AttentionKernel::cudnn_9_13;
  }
  // OLMo-core's scripts of before November 2024 (fused_loss, or not).
  if (profile.name == "olmo-core" && contains(text, "logsumexp on 16-bit logits")) profile.loss = LossKind::native;
  if (contains(text, "dispatcher: deepep")) profile.dispatcher = strategies::Dispatcher::deepep;
  if (contains(text, "cp_comm_type a2a")) profile.context = strategies::ContextKind::ulysses;
  if (contains(text, "+ rms kernel")) profile.norm = Fusion::fused;
  const bool plain = profile.name == "huggingface";
  if (!plain && profile.name != "deepspeed") return;
  // Adapters have the format of the weights beside them from PEFT 0.7 until 0.12 (tuners/lora/layer.py, update_layer; autocast_adapter_dtype), and are
  // fp32 before: Qwen's table is older than 0.7.
  const auto peft = release_after(cell(row, "source"), "peft ");
  if (plain && peft && *peft >= Release{0, 7, 0} && *peft < Release{0, 12, 0}) profile.adapter = profile.stored_parameter;
  // huggingface/peft method_comparison: use_amp is off, adapters are computed in fp32.
  const std::string source = cell(row, "source");
  if (plain && (contains(source, "method_comparison") || contains(text, "no autocast"))) profile.adapter_autocast = false;
  // Training loops of their own: run.py and train.py take torch.optim.AdamW as it is, foreach, and keep what the model returned while backward
  // runs, the former until the next batch's is there.
  if (plain && contains(source, "MetaMathQA")) profile.holds_output = profile.holds_last_graph = true;
  // Its batches are padded, so there is a mask: scaled_dot_product_attention is the memory-efficient kernel then, on repeated keys and values
  // (transformers integrations/sdpa_attention.py, use_gqa_in_sdpa; ATen/native/transformers/cuda/sdp_utils.cpp, check_for_attn_mask).
  if (plain && contains(source, "MetaMathQA")) {
    profile.attention = model::AttentionKernel::mem_efficient;
    profile.repeat_kv = true;
  }
  if (plain && contains(source, "fsdp_qlora")) profile.holds_output = profile.checkpoints_in_units = true;
  if (contains(text, "the output held")) profile.holds_output = true;
  if (plain && profile.holds_output) profile.fused_optimizer = false;
  if (contains(text, "shifted logits copied")) profile.copies_shifted_logits = true;   // transformers before 4.49, where its release is not stated
  // ljm565/universal-llm-trainer src/models: torch.nn.CrossEntropyLoss()(logits[:, :-1].reshape(...)); the output is deleted before backward.
  if (plain && contains(text, "crossentropyloss on 16-bit logits")) {
    profile.loss = LossKind::native;
    profile.copies_shifted_logits = !contains(text, "unshifted");
  }
  if (contains(text, "not upcast")) profile.upcasts_unquantised = false;
  if (const auto transformers = release_after(source, "transformers ")) {
    profile.copies_shifted_logits = *transformers < Release{4, 49, 0} || profile.loss == LossKind::native;   // loss/loss_utils.py, ForCausalLMLoss
    profile.reentrant_checkpoint = *transformers < Release{5, 0, 0};     // modeling_utils.py, gradient_checkpointing_enable
    profile.early_stop_recompute = !profile.reentrant_checkpoint;
  }
  if (const auto bitsandbytes = release_after(source, "bitsandbytes ")) profile.keeps_quantised_inputs = *bitsandbytes < Release{0, 43, 2};   // bitsandbytes pull request 1270
  // Tuned by TRL's SFTTrainer (fms-hf-tuning; trl 0.13 sft_trainer.py, peft_module_casting_to_bf16).
  if (contains(source, "fms-acceleration")) profile.narrows_tables = true;
  // transformers before 5 took torch.optim.AdamW as it is, many kernels and a temporary as large as the weights (training_args.py, optim).
  if (plain && cell(row, "optimizer") == "adamw_torch") profile.fused_optimizer = false;
  // linkedin/Liger-Kernel (RMSNorm, rotary embedding, SwiGLU, cross-entropy) and unsloth's kernels, which it came from.
  if (contains(text, "liger") || contains(text, "unsloth") || contains(text, "fused triton kernels")) {
    profile.norm = profile.rope = Fusion::fused;
    if (contains(text, "liger")) profile.activation = Fusion::fused;
    // fms-acceleration's kernel takes the place of PyTorch's alone (fms_acceleration_foak, FastForCausalLMLoss).
    const bool alone = contains(source, "fms-acceleration") && !contains(text, "liger");
    profile.loss = alone ? LossKind::upcast_fused : LossKind::fused;
    profile.keeps_logits = alone;
    notes.emplace_back("fused Triton kernels for norm, rotary embedding and loss");
  }
}

std::string gpu_of(const config::CsvRow& row) {
  const std::string stated = cell(row, "gpu");
  for (const std::string& name : hwmodels::gpu_names())
    if (name == stated) return name;
  const std::string text = plain_name(stated);
  for (const std::string& name : hwmodels::gpu_names())
    if (plain_name(name) == text) return name;
  const auto has = [&](const char* word) { return contains(text, word); };
  // The first that is in the text; longer names before those they hold.
  static const std::pair<const char*, const char*> kChips[] = {{"gb300", "gb300-nvl72"}, {"gb200", "gb200-nvl72"}, {"b300", "b300-sxm"}, {"b200", "b200-sxm"}, {"h200", "h200-sxm"},
                                                               {"h800", "h800-sxm"}, {"a800", "a800-sxm"}, {"a6000", "rtx-a6000"}, {"mi300x", "mi300x"}, {"mi325x", "mi325x"}, {"mi350x", "mi350x"}, {"mi355x", "mi355x"}, {"4090", "rtx-4090"}, {"5090", "rtx-5090"}, {"4070tisuper", "rtx-4070-ti-super"},
                                                               {"3090", "rtx-3090"}, {"l40s", "l40s"}, {"a10g", "a10g"}};
  for (const auto& [word, name] : kChips)
    if (has(word) && !has("6000ada")) return name;
  if (has("h20")) return "h20";
  if (has("h100")) return has("nvl") ? "h100-nvl" : has("pcie") ? "h100-pcie" : has("96gb") || has("hbm2e") ? "h100-96gb-hbm2e" : "h100-sxm";
  if (has("a100")) return std::string(has("40g") ? "a100-40gb" : "a100-80gb") + (has("pcie") ? "-pcie" : "-sxm");
  if (has("v100")) return has("pcie") ? "v100-pcie" : has("16g") ? "v100-16gb-sxm2" : has("sxm3") ? "v100-32gb-sxm3" : "v100-32gb-sxm2";
  throw NotSimulated{"no data of GPU '" + stated + "'"};
}

std::optional<std::string> gpu_of_stated_memory(const config::CsvRow& row, const std::string& gpu) {
  static const std::regex kClass(R"((\d+(?:\.\d+)?) GiB class)");
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
  const std::string net = cell(row, "interconnect"), framework = cell(row, "framework");
  static const std::map<std::string, std::string> usual{
      {"h100-sxm", "dgx-h100"}, {"h100-96gb-hbm2e", "grand-teton-h100"}, {"h200-sxm", "dgx-h200"}, {"h800-sxm", "h800-8nic"}, {"h20", "dgx-h200"}, {"h100-pcie", "pcie-8"}, {"h100-nvl", "pcie-8-bridge"},
      {"a100-80gb-sxm", "dgx-a100"}, {"a100-40gb-sxm", "dgx-a100"}, {"a100-80gb-pcie", "pcie-8"}, {"a100-40gb-pcie", "pcie-8"}, {"a800-sxm", "a800-4nic"},
      {"b200-sxm", "dgx-b200"}, {"b300-sxm", "dgx-b300"}, {"gb200-nvl72", "gb200-nvl72"}, {"gb300-nvl72", "gb300-nvl72"}, {"mi300x", "mi300x-8"},
      {"l40s", "l40s-8"}, {"l4", "l40s-8"}, {"a10g", "g5"}, {"rtx-a6000", "pcie-8"}, {"rtx-4090", "rtx-4090-8"}, {"rtx-3090", "rtx-4090-8"}, {"rtx-4070-ti-super", "rtx-4090-8"},
      {"a40", "pcie-8"}, {"a30", "pcie-8"}, {"l40", "l40s-8"}, {"rtx-6000-ada", "pcie-8"}, {"rtx-5090", "rtx-4090-8"}, {"mi325x", "mi300x-8"}, {"mi350x", "mi355x-8"}, {"mi355x", "mi355x-8"},
      {"v100-32gb-sxm2", "dgx-1v"}, {"v100-32gb-sxm3", "dgx-2"}, {"v100-16gb-sxm2", "dgx-1v"}, {"v100-pcie", "pcie-8"}};
  // One card needs no others beside it; machines that only hold eight of a kind keep their own host.
  static const char* const kDesktops[] = {"a10g", "a30", "a40", "rtx-a6000", "rtx-3090", "rtx-4070-ti-super", "rtx-5090", "rtx-6000-ada", "l4", "l40", "h100-pcie", "h100-nvl", "a100-40gb-pcie", "v100-pcie", "h800-sxm", "h20"};
  if (integer(row, "n_gpus").value_or(1) == 1 && std::find(std::begin(kDesktops), std::end(kDesktops), gpu) != std::end(kDesktops)) return "single-gpu";
  if (framework == "nanotron") return "p5-2024";
  if (gpu.starts_with("v100") && contains(net, "Jean Zay")) return "jean-zay-v100";
  if (gpu == "a100-80gb-sxm" && contains(net, "Jean Zay")) return "jean-zay-a100";
  // Boards of four GPUs, linked pair by pair: the Kempner Institute's H200s (KempnerForge scripts/slurm/multinode.sh), and A100s where the row says so.
  if (gpu == "h200-sxm" && framework == "kempnerforge" && integer(row, "gpus_per_node") == 4) return "hgx-h200-4";
  if (gpu == "a100-80gb-sxm" && contains(net, "4 x A100-SXM4 per node")) return "hgx-a100-4";
  if (gpu == "v100-32gb-sxm2" && (framework == "deepspeed" /* where DeepSpeed's authors measured */ || contains(cell(row, "note"), "(DGX-2)"))) return "dgx-2";
  if (gpu == "a100-80gb-sxm" && (contains(net, "4x HDR") || contains(net, "4x200"))) return "hgx-a100-4nic";
  if (gpu == "a100-40gb-sxm" && contains(net, "1600 Gbps")) return "dgx-a100";
  // Machines of AWS: SageMaker's, and the Stability AI cluster that EleutherAI trained Pythia on (EleutherAI/DeeperSpeed 0c0c846beb,
  // 2022-08, "env vars for stability cluster", made on an EC2 host: FI_EFA_USE_DEVICE_RDMA, which of A100s only p4d has).
  const std::string about = cell(row, "source") + " " + cell(row, "note");
  if (gpu == "a100-40gb-sxm" && net.empty() && (contains(about, "SageMaker") || contains(about, "Pythia"))) return "p4d";
  if (gpu.starts_with("a100") && contains(net, "Azure")) return "nd-a100-v4";
  if (auto special = node_by_fabric(gpu, net)) return *std::move(special);
  if (const auto it = usual.find(gpu); it != usual.end()) return it->second;
  if (integer(row, "n_gpus").value_or(1) == 1) return "single-gpu";
  throw NotSimulated{"no node design for '" + gpu + "'"};
}

void apply_network(const config::CsvRow& row, hwmodels::ClusterDescription& cluster, std::vector<std::string>& notes) {
  // "400 Gbps", "1600 Gbps RoCE per node"; not "8x400 Gb", nor "400 Gb/s per GPU".
  static const std::regex kRate(R"((^|[^0-9x.])([0-9]{1,4}) ?Gbps)");
  const std::string net = cell(row, "interconnect");
  std::smatch found;
  hwmodels::NicDesign& nic = cluster.node.nic;
  if (nic.count == 0 || contains(net, "per GPU") || contains(net, " x ") || !std::regex_search(net, found, kRate)) return;
  const double gbps = std::stod(found[2].str()), line = nic.bandwidth.value * 8 / 1e9;
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
