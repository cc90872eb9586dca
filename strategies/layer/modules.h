// Modules that a tape stands for, as torch.nn counts those whose forward is called, and where in it they begin. Leaves out what hooks on
// them do (data/zero3.h) and take (tape_emitter.cpp).
#pragma once

#include <vector>

#include "strategies/layer/tape.h"

namespace rehearse::strategies {

/// PEFT's module around an adapted linear layer, from the node of the layer itself to that of the adapter's second product. It asks for the
/// type of lora_A's weight (tuners/lora/layer.py, Linear.forward), which DeepSpeed therefore takes for one of this module's own
/// (parameter_offload.py, ZeROOrderedDict.__getitem__).
struct Wrapper {
  int weight = 0;   // of lora_A
  int first = 0, last = 0;
};

/// How many modules begin just before each node, by pass, without wrappers.
struct ModuleStarts {
  std::vector<int> forward, backward;
  int behind_forward = 0;              // and behind the last node
  std::vector<std::vector<int>> own;   // weights of the last module that begins before each node
  std::vector<Wrapper> wrappers;
};

/// One module per weight (a bias belongs to its weight's); of an adapted linear layer the wrapper and the dropout of PEFT (huggingface/peft
/// tuners/lora/layer.py: base_layer, lora_dropout, lora_A and lora_B are modules); of a layer itself, attention, MLP and activation. `loops`:
/// experts are modules of their own, each with its linear layers and its activation (transformers 4, models/mixtral/modeling_mixtral.py).
/// A module's backward begins with that of the last node in it. `around`: modules around the whole model, which begin with the
/// embedding, and in backward with the loss; the innermost, whose output is the final norm's, behind the head.
ModuleStarts module_starts(const Tape& tape, bool loops, int around);

/// Tensors that a weight stands for: of experts in a loop one for each linear layer.
std::int64_t tensors_standing_for(const Weight& weight, bool loops);

}  // namespace rehearse::strategies
