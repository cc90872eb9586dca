// Which weights a tuning job trains, which linear layers carry low-rank adapters and which are stored in 4 bits.
// Leaves out how an adapter is computed (layer/adapter.cpp) and what data parallelism does with the rest (data/).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/core/error.h"
#include "sim/model/description.h"
#include "strategies/framework/profile.h"
#include "strategies/spec.h"

namespace rehearse::strategies {

/// One entry of `tuning.trainable`: "part", "layers.A-B" or "layers.A-B.part". Parts: all, embedding, head, norms, biases,
/// attention, mlp, experts, some of them (experts.A-B), router, or a linear layer by name.
struct Selector {
  int first = -1, last = -1;   // layers, both ends included; -1: everywhere
  std::string part;
  int first_expert = -1, last_expert = -1;   // part experts: these only; -1: all
};

/// Unset: not written that way.
std::optional<Selector> parse_selector(const std::string& text);

/// Whether a selector means this weight ("q_proj.weight", "input norm.weight", ...). `layer` -1: embedding or head.
bool selects(const Selector& selector, const std::string& weight, int layer);

/// How many of `experts` experts of a layer the job trains itself: of those that one of the entries names.
std::int64_t trained_experts(const Tuning& tuning, int layer, std::int64_t experts);

/// Whether the job trains this weight itself (adapters are always trained).
bool trains(const Tuning& tuning, const std::string& weight, int layer);

/// Whether this linear layer, or (for one that holds several, as "qkv") which of its parts, carries an adapter.
/// Returns the indices of the adapted parts; empty: none. `parts`: names of what a fused layer holds, else its own name.
std::vector<std::size_t> adapted_parts(const Tuning& tuning, const std::string& linear, const std::vector<std::string>& parts);
/// What a fused linear layer holds: "qkv" -> q_proj, k_proj, v_proj; "gate_up" -> gate_proj, up_proj; else itself.
std::vector<std::string> parts_of(const std::string& linear);

/// Whether this linear layer's weight is stored in 4 bits.
bool quantises(const Tuning& tuning, const FrameworkProfile& profile, const std::string& linear);

/// Whether 4-bit preparation makes what stays in 16 bits fp32. Not of GPTQ's models (peft utils/other.py, is_gptq_quantized), not beside sharded parameters, whose units have one format each
/// (trl 0.13 sft_trainer.py, is_sharded_qlora).
bool upcasts_unquantised(const Strategy& strategy, const FrameworkProfile& profile);

/// LLaMA-Adapter: how many vectors a layer's prompt has and which layers have one (Lightning-AI/litgpt adapter.py, Config:
/// adapter_prompt_length, adapter_start_layer).
constexpr std::int64_t kPromptLength = 10;
constexpr int kFirstPrompted = 2;
bool has_prompt(const Tuning& tuning, int layer);

/// Bytes of a 4-bit weight: two values per byte and one scale per block of 64: fp32, or with double quantisation one byte
/// and an fp32 per 256 of them. Source: bitsandbytes functional.py (quantize_4bit, blocksize 64; nested: 256).
std::int64_t quantised_bytes(std::int64_t elements, bool double_quantisation);
/// The same in the job's format. GPTQ: two values per byte, and per group of 128 a 16-bit scale and a 4-bit zero.
/// Source: AutoGPTQ nn_modules/qlinear/qlinear_cuda_old.py (qweight, scales, qzeros); Qwen-7B-Chat-Int4 quantize_config.json (128).
std::int64_t quantised_bytes(std::int64_t elements, const Tuning& tuning);

/// Of those, what lies beside the parameter itself: NF4's scales (bitsandbytes, Params4bit.quant_state). GPTQ's are tensors of the module.
std::int64_t quantisation_states(std::int64_t elements, const Tuning& tuning);
/// Groups of a GPTQ weight.
std::int64_t gptq_groups(std::int64_t elements);

/// Layers with equal signatures (and equal shapes) have equal tapes.
std::string tuning_signature(const Tuning& tuning, int layer);

/// Selectors under `key` that are not written as such, or name what this model has not, with what it has.
std::vector<Diagnostic> selector_problems(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, const char* key, const std::vector<std::string>& texts);

/// Why this tuning cannot be, in the user's keys and words. `all_else_holds`: the strategy has no other mistake; what is in the model's layers is looked
/// at only then, since there are none of a strategy with mistakes.
std::vector<Diagnostic> tuning_problems(const model::ModelDescription& model, const Strategy& strategy, const FrameworkProfile& profile, bool all_else_holds = true);

}  // namespace rehearse::strategies
