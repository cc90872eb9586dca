// What layers keep for backward, in host memory until then: all of it, where layers are not made again.
// Leaves out inputs of recomputed layers (activation_offload.h) and who calls when (stage_passes.cpp).
//
// As Transformer Engine's CPU offloading does it (pytorch/cpu_offload.py, AsyncDoubleBufferGroupOffloadHandler): the first layers of a
// chunk go, one after the other, each in its share of the forward pass, and come back one after the other in the same shares of
// the backward pass. Where all layers go, each goes beside the next one.
#pragma once

#include <map>
#include <vector>

#include "strategies/stage.h"

namespace rehearse::strategies {

class SavedOffload {
 public:
  static constexpr std::uint32_t kSlots = 2;   // of a layer's own frame, behind its tape's: events of gone and back
  /// Smaller tensors stay. Source: Transformer Engine pytorch/cpu_offload.py, tensor_need_offloading_checker_activations and
  /// minimum_offload: 256 * 1024 elements, of 2 bytes.
  static constexpr std::int64_t kLeast = std::int64_t{512} << 10;

  explicit SavedOffload(Stage& stage);
  bool active() const { return active_; }

  /// A layer of a chunk, in one micro-batch: its calls' frames, its forward block, and the first of its own frame's kSlots.
  struct Layer {
    plan::Call call;
    std::uint32_t forward = 0, extra = 0;
    std::int64_t input_bytes = 0;
  };
  /// `layer` of `layers` of the chunk has run forward. `of(l)` describes any of them.
  template <typename Of>
  void after_forward(std::size_t layer, std::size_t layers, Of of) {
    const std::size_t away = offloaded(layers);
    if (layer == 0) copying_ = 0, leave(of(0));
    if (copying_ < away && leaves_by(copying_, layers) == layer) next(away, of);
  }
  /// The chunk's forward pass is over.
  template <typename Of>
  void end_of_forward(std::size_t layers, Of of) {
    while (copying_ < offloaded(layers)) next(offloaded(layers), of);
  }
  /// `layer` of `layers` is next in the backward pass.
  template <typename Of>
  void before_backward(std::size_t layer, std::size_t layers, Of of) {
    for (std::size_t l = offloaded(layers); l-- > 0;)
      if (const std::size_t at = leaves_by(l, layers); at == layer || (at >= layers && layer + 1 == layers)) come_back(of(l));
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
  std::size_t leaves_by(std::size_t layer, std::size_t layers) const;
  template <typename Of>
  void next(std::size_t away, Of of) {
    let_go(of(copying_));
    if (++copying_ < away) leave(of(copying_));
  }
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
  std::size_t copying_ = 0;                               // layer of the chunk that is on its way
  std::map<std::uint32_t, std::vector<Saved>> saved_;     // by forward block
  std::int64_t live_ = 0, peak_ = 0;
};

}  // namespace rehearse::strategies
