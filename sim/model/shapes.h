// A model written as a handful of numbers, as scenario files and tables of measured runs write it.
// Leaves out where the numbers come from (the scenario reader, the validator) and named models (presets.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/model/description.h"

namespace rehearse::model {

/// Sizes as people state them. Only layers, hidden, heads and vocab must be given; the rest has the usual
/// defaults.
struct Shapes {
  std::string name;
  std::int64_t layers = 0, hidden = 0, heads = 0, vocab = 0;
  std::optional<std::int64_t> kv_heads;  // default: heads
  std::optional<std::int64_t> head_dim;  // default: hidden / heads
  std::optional<std::int64_t>
      ffn_hidden;            // default: 4 * hidden, or Llama's 8/3 * hidden rounded up to 256 when gated
  bool gated = true;         // true: Llama style, false: GPT style (make_from_shapes)
  std::optional<bool> tied;  // default: false for Llama style, true for GPT style
  std::int64_t max_positions = 0;  // rows of GPT style's learned position table: give the sequence length
  std::int64_t experts = 0;        // 0 = dense; otherwise every layer is MoE
  std::int64_t top_k = 0;          // default with experts: 1
  std::optional<std::int64_t> moe_ffn_hidden;  // default: ffn_hidden
  std::int64_t shared_ffn_hidden = 0;          // 0 = no shared expert
};

/// gated = true is Llama style: RMSNorm, rotary positions, no biases, SiLU, three-matrix MLP, untied.
/// gated = false is GPT style: LayerNorm with bias, learned positions, GELU, biases everywhere, two-matrix
/// MLP, tied. Neither has dropout: published throughput and memory runs of both switch it off, and who wants
/// it says so. The result may have problems_of(); nothing is checked or thrown here.
ModelDescription make_from_shapes(const Shapes& shapes);

/// Gives the layers their parts, a letter each, repeated from the start: T (attention, and MLP or experts as the layer has them), S (a state-space
/// mixer in place of attention), D (a delta-rule mixer), or one part alone: M (state-space mixer), G (delta-rule mixer), * (attention), - (MLP),
/// E (experts), as Nemotron-H and Megatron write them. Returns what is wrong with the pattern, "" if nothing; then `model` is unchanged.
std::string apply_layer_pattern(const std::string& pattern, ModelDescription& model);
/// The letters of a model's layers, as apply_layer_pattern reads them.
std::string layer_pattern_of(const ModelDescription& model);

/// The same model with `layers` layers: cut, or its pattern of windows and experts repeated. layers >= 1.
ModelDescription with_layers(ModelDescription model, std::int64_t layers);

/// A named model with the stated sizes in place of its own, as a table row "llama3-70b (12 layers)" means it:
/// the name gives the style (norms, biases, windows), the row the sizes. Sizes that are 0 or absent stay, and
/// so do `gated` and `name`. head_dim follows hidden and heads when it did before and is not stated.
ModelDescription with_sizes(ModelDescription model, const Shapes& stated);

}  // namespace rehearse::model
