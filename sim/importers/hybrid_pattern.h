// Megatron's way to write the layers of a hybrid model: --hybrid-layer-pattern "M-M*-|M-M-/*-", --hybrid-override-pattern before 2026.
// Leaves out what the letters are made of (model/shapes.h, apply_layer_pattern).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rehearse::importers {

struct HybridPattern {
  std::string letters;                // of all layers: M state-space mixer, * attention, - MLP, E experts
  std::int64_t predictions = 0;       // further layers for multi-token prediction, a part behind a slash each
  std::vector<std::int64_t> chunks;   // layers of each part between bars: the pipeline's stages, or its virtual ones
  std::string problem;                // why it cannot be read; "" if it can
};

/// Source: megatron/core/models/hybrid/hybrid_layer_allocation.py (Symbols, parse_hybrid_pattern).
HybridPattern hybrid_pattern(const std::string& text);

}  // namespace rehearse::importers
