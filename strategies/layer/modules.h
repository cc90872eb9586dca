// Modules that a tape stands for, as torch.nn counts those whose forward is called, and where in it they begin. Leaves out what hooks on
// them do (data/zero3.h) and take (tape_emitter.cpp).
#pragma once

#include <vector>

#include "strategies/layer/tape.h"

namespace rehearse::strategies {

/// How many modules begin just before each node, by pass.
struct ModuleStarts {
  std::vector<int> forward, backward;
  int behind_forward = 0;   // and behind the last node
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
