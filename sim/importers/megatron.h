// Megatron-LM's arguments: what they say of a layer.
// Leaves out the text they come from (argument_text.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/config/value.h"
#include "sim/core/units.h"

namespace rehearse::importers {

/// What the arguments say beyond sizes; absent ones have the defaults of megatron/training/arguments.py.
struct MegatronLayer {
  double hidden_dropout = 0.1, attention_dropout = 0.1;
  enum class Loss { own, own_compiled, transformer_engine } loss = Loss::own;
  bool fused_gradient_accumulation = true;
  bool fp8_parameters = false;           // --fp8-param-gather, with products of 8 bits
  bool local = false;                    // Megatron's own layers in place of Transformer Engine's
  bool unfused_attention = false;        // scores stand in memory
  bool legacy = false;                   // the models from before Megatron-Core
  bool own_flash_attention = false;      // the flash-attn package, whatever Transformer Engine would choose
  bool own_rms_norm = false;             // legacy models' module, one operator at a time in fp32 (megatron/legacy/model/rms_norm.py)
  bool gated = false, rms_norm = false, qk_norm = false, linear_biases = true, untied = false;
  std::optional<std::string> position;   // as Megatron names it: learned_absolute, rope, ...
};

/// Names of modules, words of small letters alone, of a list's text or of Python's own: "[attn moe_router]", "attn,mlp", "[<CudaGraphModule.attn: 1>]"; none of "None".
std::vector<std::string> module_names(const std::string& text);

/// CUBLAS_WORKSPACE_CONFIG, ":KiB:count" once or more often: the bytes of one handle; 0 where it has no sizes.
Bytes cublas_workspace_of(const std::string& config);

/// `arguments` as flat_arguments() makes them, of flags (no_gradient_accumulation_fusion) or of a dump
/// (gradient_accumulation_fusion).
MegatronLayer megatron_layer(const config::Value& arguments);

}  // namespace rehearse::importers
