// What layers keep for backward, in host memory until then: all of it, where layers are not made again.
// Leaves out inputs of recomputed layers (activation_offload.h) and who calls when (stage_passes.cpp).
//
// As Transformer Engine's CPU offloading does it (pytorch/cpu_offload.py of 2026-08, DefaultOffloadSynchronizer): the first N of L layers go
// as they have run; layer i must be gone by the beginning of layer L - N + i, and begins to come back when backward comes to layer
// L - 1 - N + i, so that L - N layers lie on the GPU at most. Where all layers go, each goes beside the next one.
#pragma once

#include <map>
#include <vector>

#include "strategies/stage.h"

namespace rehearse::strategies {

class SavedOffload {
 public:
  static constexpr std::uint32_t kSlots = 2;   // of a layer's own frame, behind its tape's: events of gone and back
  /// Smaller tensors stay. Source: the same, _check_if_offload: 256 * 1024 elements, of 2 bytes.
  static constexpr std::int64_t kLeast = std::int64_t{512} << 10;

  explicit SavedOffload(Stage& stage);
  bool active() const { return active_; }

  /// A layer of a chunk, in one micro-batch: its calls' frames, its forward block, and the first of its own frame's kSlots.
  struct Layer {
    plan::Call call;
    std::uint32_t forward = 0, extra = 0;
    std::int64_t input_bytes = 0;
    const std::vector<std::uint32_t>* staying = nullptr;   // slots of the forward block that are left where they are
  };
  /// `layer` of `layers` of the chunk has run forward. `of(l)` describes any of them.
  template <typename Of>
  void after_forward(std::size_t layer, std::size_t layers, Of of) {
    if (layer < offloaded(layers)) leave(of(layer));
    for (std::size_t l = 0; l < offloaded(layers); ++l)
      if (gone_behind(l, layers) == layer) let_go(of(l));
  }
  /// The chunk's forward pass is over.
  template <typename Of>
  void end_of_forward(std::size_t layers, Of of) {
    for (std::size_t l = 0; l < offloaded(layers); ++l)
      if (gone_behind(l, layers) >= layers) let_go(of(l));
  }
  /// `layer` of `layers` is next in the backward pass.
  template <typename Of>
  void before_backward(std::size_t layer, std::size_t layers, Of of) {
    for (std::size_t l = offloaded(layers); l-- > 0;)
      if (fetched_before(l, layers) == layer) come_back(of(l));
    if (layer < offloaded(layers)) use(of(layer));
  }

 private:
  /// A tensor that backward reads: in the own frame, or the layer's input, in the frame below.
  struct Saved {
    plan::Frame frame;
    std::uint32_t slot;
    std::int64_t bytes;
  };

  std::size_t offloaded(std::size_t layers) const;
  /// Behind which layer's forward an offloaded layer's tensors are gone; `layers`: behind the last.
  std::size_t gone_behind(std::size_t layer, std::size_t layers) const;
  /// Before which layer's backward they begin to come back.
  std::size_t fetched_before(std::size_t layer, std::size_t layers) const;
  void leave(const Layer& layer);
  void let_go(const Layer& layer);
  void come_back(const Layer& layer);
  void use(const Layer& layer);
  const std::vector<Saved>& saved(const Layer& layer);
  template <typename Write>
  void call(const Layer& layer, const char* what, plan::Phase phase, Write write);
  std::int64_t bytes(const Layer& layer);

  Stage& stage_;
  bool active_ = false, pinned_ = true;
  std::size_t most_ = 0;                                  // layers of a chunk, 0: all
  std::map<std::uint32_t, std::vector<Saved>> saved_;     // by forward block
  std::int64_t live_ = 0, peak_ = 0;
};

}  // namespace rehearse::strategies
