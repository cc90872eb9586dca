// The tapes of a transformer: embedding, one layer of each kind, and final norm + head + loss.
// Leaves out how the operators are lowered (operators.h) and where the tapes run (stage_chunks.h, stage_passes.h).
#pragma once

#include "strategies/layer/operators.h"

namespace rehearse::strategies {

/// Token (and position) embedding, dropout: makes the residual stream. Has no input.
/// `tied_here`: the head on the same rank uses the same table, and makes its gradient first.
Tape embedding_tape(const LowerContext& context, bool tied_here);

/// One transformer layer. `layer` says what differs from layer to layer (window, dense or experts).
Tape layer_tape(const LowerContext& context, const model::Layer& layer);

/// Final norm, output head over the (tensor-parallel) vocabulary and the loss. Has no output.
Tape head_tape(const LowerContext& context, bool tied_here);

/// The two halves of head_tape, where the loss has a stage of its own: final norm and output head, which make the logits,
/// and the loss over logits that were received.
Tape output_tape(const LowerContext& context, bool tied_here);
Tape loss_tape(const LowerContext& context);
/// Of one micro-batch's logits on one rank, as the output head makes them.
std::int64_t logits_bytes(const LowerContext& context);

/// Rows of the vocabulary table as the framework pads them. Source: the profile's vocab_multiple.
std::int64_t padded_vocabulary(const LowerContext& context);

}  // namespace rehearse::strategies
