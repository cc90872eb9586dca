// The kernels of a Mamba-2 scan over chunks of tokens, as mamba_ssm's Triton code launches them on one rank.
// Leaves out which tensors live how long (strategies/layer/state_space.cpp) and how fast the kernels are (hwmodels/device).
#pragma once

#include "sim/model/description.h"
#include "sim/model/kernel.h"

namespace rehearse::model {

/// One rank's scan: its tokens of all samples, its heads and groups of a mixer. Bytes are those of the tensors named.
struct ScanShape {
  std::int64_t tokens = 0, heads = 0, head_dim = 0, groups = 0, state = 0, chunk = 0;
  DType dtype = DType::bf16;

  /// Of `mixer` over `ranks` tensor- and context-parallel ranks. Precondition: they divide its heads. At least one group per rank.
  static ScanShape of(const StateSpace& mixer, std::int64_t tokens, std::int64_t ranks, DType dtype);

  std::int64_t element() const { return bits(dtype) / 8; }
  std::int64_t inner() const { return heads * head_dim; }
  std::int64_t channels() const { return inner() + 2 * groups * state; }      // of the convolution
  std::int64_t projected() const { return inner() + channels() + heads; }
  std::int64_t values() const { return tokens * inner() * element(); }        // x, the gate, the output
  std::int64_t maps() const { return tokens * groups * state * element(); }   // B or C
  std::int64_t convolved() const { return tokens * channels() * element(); }
  std::int64_t steps() const { return tokens * heads * 4; }                   // time steps or their running sums, fp32
  std::int64_t products() const { return tokens * chunk * groups * 4; }       // C B^T within chunks, fp32
  std::int64_t wide_states() const { return tokens * inner() * state / chunk * 4; }   // one per chunk, fp32
  std::int64_t states() const { return tokens * inner() * state / chunk * element(); }
  std::int64_t wide_maps() const { return tokens * groups * state * 4; }      // gradients of B or C before they are rounded
};

/// What the forward pass launches: the convolution, running sums of decays, a state per chunk, states passed on, products within chunks, output.
/// `gated`: the output is multiplied with the gate in the last kernel, which then writes it before and after.
/// Source: state-spaces/mamba@e9594ce1 mamba_ssm/ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn.forward.
struct ScanForward {
  KernelSpec convolution, sums, state, pass, products, output;
};
ScanForward scan_forward(const ScanShape& shape, bool gated);

/// What the backward pass launches beyond what it makes again of the forward pass (all but the output).
/// Source: the same file, _mamba_chunk_scan_combined_bwd.
struct ScanBackward {
  KernelSpec gate, states, pass, values, input_map, output_map, products, products_input, products_output, decays, sums, convolution;
};
ScanBackward scan_backward(const ScanShape& shape);

}  // namespace rehearse::model
