// Turns a tape into a forward and a backward block: when each tensor is allocated, used, kept and freed, in host order,
// as PyTorch's autograd engine would do it. Leaves out what surrounds the layer (parameters, pipeline messages).
//
// Frame convention: slot 0 of the own frame is the layer's output, slot 1 the gradient of its input; the layer reads its
// input from slot 0 of the frame below and the gradient of its output from slot 1 of the frame above. The unit frame has
// one slot per weight, for its gradient.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/plan/builder.h"
#include "strategies/framework/profile.h"
#include "strategies/layer/tape.h"

namespace rehearse::strategies {

constexpr std::uint32_t kOutputSlot = 0;
constexpr std::uint32_t kInputGradientSlot = 1;

/// What becomes of a weight gradient when backward has made it.
enum class WeightGradient : std::uint8_t {
  fused_main,    // the GEMM adds into a persistent buffer (Megatron gradient accumulation fusion)
  added_main,    // made in 16 bit, added to a persistent buffer, freed
  first,         // becomes .grad: allocated in the unit frame (first micro-batch)
  accumulate,    // made as a temporary, added to .grad, freed
};

/// What waits for the weight gradients when backward is split into input gradients and weight gradients.
enum class SplitBackward : std::uint8_t {
  none,            // one backward block
  stored_operands, // weight-gradient products and what they read (Megatron's and DualPipe's weight-gradient store)
  retained_graph,  // every weight's gradient; everything that backward saved (torch.distributed.pipelining)
};

struct EmitOptions {
  plan::Phase phase = plan::Phase::forward;
  bool checkpoint = false;            // the whole tape is one checkpoint: only its input is kept
  WeightGradient gradient = WeightGradient::first;
  bool recorded = true;               // false: no gradients at all (evaluation)
  bool input_gradient = true;         // false: nothing trainable below
  std::int64_t gradient_element_bytes = 2;   // of a gradient as the weight-gradient kernel writes it
  std::int64_t main_gradient_element_bytes = 4;
  std::int64_t backward_workspace = 0;   // bytes that the first matrix product of backward makes in `backward_workspace_slot` of the program
  std::uint32_t backward_workspace_slot = 0;
  Duration collective_wait{};         // host time of a collective beyond the profile's
  SplitBackward split = SplitBackward::none;
  int hooked_gradients = 0;           // trained parameters whose gradients have hooks (ZeRO-2)
  std::int64_t hooks_above = -1;      // modules have hooks before and after each pass (ZeRO-3): where they begin is marked, and where those with larger weights end, in elements; -1: none have
  bool output_gradient_asked = false; // without anything trainable that made it: a module's hooks on its output run (PEFT's enable_input_require_grads)
  std::int64_t least_offloaded = 0;   // bytes of the smallest tensor that waits in host memory
  int modules_around = 0;             // the whole model, with hooks too
  std::optional<std::uint32_t> gather_again;   // collective behind a checkpoint's recomputation, of parameters that go with its end
  bool keeps_input = false;           // of a pass that is not recorded: it is run again from its input
  bool retains_ends = false;          // a checkpoint whose input and its gradient stay until the micro-batch's backward is over
  bool above_retains = false;         // the layer above is such a one
};

/// Between two nodes of a block: a module begins, the modules of some weights end, or the gradients of some have been made.
struct HookPoint {
  plan::Cut at;
  bool begins = false;
  bool recorded = false;        // the module's forward, and autograd saves what its backward reads
  bool releases = true;         // false: nothing runs at the end of its backward
  std::vector<int> weights;     // of the modules, in the tape's order; small ones, which are never away, and modules without: none
  std::vector<int> gradients;   // made since the last point; at the end of a module, or of the block
};

/// A tensor that waits for backward in host memory.
struct OffloadedTensor {
  plan::Frame frame = plan::Frame::own;
  std::uint32_t slot = 0;
  std::int64_t bytes = 0;
};

/// What the nodes of an OffloadGroup save, beside small tensors and what is made again in backward: what is copied, what nobody needs on the device
/// from there on (of earlier groups too, whose tensors later nodes have read; a group without copies lets go of them at the end of the layer), what
/// comes back before the group's backward.
struct OffloadedGroup {
  std::string module;
  std::vector<OffloadedTensor> copied, released, fetched;
};

/// Between two nodes of a block: what a group has saved may leave; its backward begins; has ended.
struct OffloadPoint {
  enum class Kind : std::uint8_t { leaves, begins, ends } kind = Kind::leaves;
  plan::Cut at;
  std::size_t group = 0;
};

/// Blocks of one tape for one micro-batch and the frame they share. Forward is the same block of instructions in every
/// variant. Split: `backward` makes the input gradients, `weights` the rest. Of what outlives backward: `drop_graph` lets go of
/// it, `last_graph` makes it, as a graph of before, and `keep_graph` takes it over from the frame below; kNoFrame: nothing does.
struct TapeBlocks {
  std::uint32_t forward = 0, backward = 0, weights = 0, drop_graph = plan::kNoFrame, last_graph = plan::kNoFrame, keep_graph = plan::kNoFrame;
  std::uint32_t slots = 0;
  std::vector<HookPoint> forward_hooks, backward_hooks;   // in order
  std::vector<OffloadedGroup> offloaded;                  // of the tape's groups
  std::vector<std::uint32_t> staying;                     // slots of what offloading of whole layers leaves on the device
  std::vector<OffloadPoint> forward_offloads, backward_offloads;   // in order
};

/// Precondition: nodes are in topological order and every tensor but `input` is the output or intermediate of one node.
TapeBlocks emit(const Tape& tape, const EmitOptions& options, const FrameworkProfile& profile, plan::PlanBuilder& builder);

}  // namespace rehearse::strategies
