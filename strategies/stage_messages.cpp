#include "strategies/stage_messages.h"

#include <string>

#include "strategies/layer/tape_emitter.h"

namespace rehearse::strategies {

using plan::Frame;
using plan::Phase;
using plan::Stream;

namespace {

bool sends(ActionKind k) { return k == ActionKind::send_forward || k == ActionKind::send_backward; }
bool activation(ActionKind k) { return k == ActionKind::send_forward || k == ActionKind::recv_forward; }
/// Activations enter below a chunk and leave above it, gradients the other way round.
bool enters(ActionKind k) { return sends(k) != activation(k); }

/// Messages to one side are a queue, and so are those from it: what would wait for a rank on the other side must not
/// stand before them.
Stream stream_of(ActionKind kind, const ChunkNeighbours& n) {
  const bool straight = enters(kind) ? n.previous_is_below : n.next_is_above;
  if (sends(kind)) return activation(kind) == straight ? Stream::send_forward : Stream::send_backward;
  return activation(kind) == straight ? Stream::recv_forward : Stream::recv_backward;
}

}  // namespace

void StageMessages::issue(const Action& a, bool batched) {
  const StageChunk& c = chunks_[a.chunk];
  const int peer = enters(a.kind) ? c.neighbours.previous : c.neighbours.next;
  if (peer < 0) return;
  if (c.neighbours.gathered) return exchange(a);
  plan::Call call{.block = block_of(a, peer, batched), .phase = Phase::communication, .micro_batch = a.micro_batch};
  call.frames[static_cast<std::size_t>(Frame::own)] = boundary(a);
  if (sends(a.kind)) call.frames[static_cast<std::size_t>(Frame::below)] = frames_.units.at(a.micro_batch, activation(a.kind) ? c.last - 1 : c.first);
  stage_.append(call);
  if (a.kind == ActionKind::send_backward) through(a);
}

std::uint32_t StageMessages::block_of(const Action& a, int peer, bool batched) {
  const StageChunk& c = chunks_[a.chunk];
  const bool forward = activation(a.kind);
  const Stream stream = stream_of(a.kind, c.neighbours);
  const std::int64_t bytes = bytes_of(a), sent = splits(bytes) ? bytes / stage_.strategy.parallelism.degrees.tensor : bytes;
  const std::tuple key(a.kind, peer, stream, bytes, batched);
  if (const auto it = blocks_.find(key); it != blocks_.end()) return it->second;
  plan::BlockWriter w(std::string(name_of(a.kind)) + " " + std::to_string(peer));
  const std::uint32_t spec = stage_.builder.message({static_cast<std::uint16_t>(peer), static_cast<std::uint8_t>(forward ? 0 : 1), Bytes{sent}, batched});
  const std::uint32_t slot = forward ? kOutputSlot : kInputGradientSlot;
  if (sends(a.kind)) {
    w.send(spec, stream, plan::kAfterCompute, stage_.profile.collective_host);
    // What was sent is let go: the input's gradient, and the output's storage where the framework knows that nobody reads it.
    const bool keeps = forward && stage_.keeps_sent();
    if (!keeps || sent < bytes) w.free(slot, Frame::below);
    if (keeps && sent < bytes) w.alloc(slot, sent, plan::Category::activation, Frame::below);   // the share is a tensor of its own
  } else {
    w.alloc(slot, bytes, plan::Category::activation);
    w.recv(spec, stream, plan::kAfterCompute, stage_.profile.collective_host);
  }
  w.record(stream, forward ? StageFrames::kForwardEvent : StageFrames::kBackwardEvent);
  return blocks_.emplace(key, stage_.builder.add_block(w.take())).first->second;
}

/// torch.nn.DataParallel's gather and scatter, as messages to and from the chunk that has the loss: outputs are copied side
/// by side on the first GPU, parts of their gradient go home. Its own part stays where it is, and with it the whole tensor.
void StageMessages::exchange(const Action& a) {
  const StageChunk& c = chunks_[a.chunk];
  const bool forward = activation(a.kind), sending = sends(a.kind), first_gpu = stage_.rank_class.representative == 0;
  const std::int64_t bytes = enters(a.kind) ? c.bytes_in : c.bytes_out, all = enters(a.kind) ? bytes : bytes * stage_.sizes.data;
  const std::uint32_t slot = forward ? kOutputSlot : kInputGradientSlot;
  const std::uint32_t block = stage_.block(std::string(forward ? "outputs " : "output gradients ") + (sending ? "leave " : "come ") + std::to_string(all), [&](plan::BlockWriter& w) {
    if (!sending && (forward || !first_gpu)) w.alloc(slot, bytes, plan::Category::activation);
    if (forward ? sending : first_gpu == sending)
      w.collective(stage_.builder.collective({forward ? CollectiveKind::gather : CollectiveKind::scatter, plan::GroupAxis::data, Bytes{all}, forward ? "outputs" : "output gradients"}), Stream::data_gather,
                   plan::kAfterCompute | plan::kComputeWaits, stage_.profile.collective_host);
    if (sending && forward) w.free(slot, Frame::below);
    if (!sending && !forward && first_gpu) w.move(slot, slot, Frame::below);
  });
  plan::Call call{.block = block, .phase = Phase::communication, .micro_batch = a.micro_batch};
  call.frames[static_cast<std::size_t>(Frame::own)] = boundary(a);
  if (sending) call.frames[static_cast<std::size_t>(Frame::below)] = frames_.units.at(a.micro_batch, forward ? c.last - 1 : c.first);
  else if (!forward && first_gpu) call.frames[static_cast<std::size_t>(Frame::below)] = frames_.units.at(a.micro_batch, chunks_[a.chunk + 1].first);
  if (block != plan::kNoFrame) stage_.append(call);
  if (a.kind == ActionKind::send_backward) through(a);
}

std::int64_t StageMessages::bytes_of(const Action& a) const { return enters(a.kind) ? chunks_[a.chunk].bytes_in : chunks_[a.chunk].bytes_out; }

/// Ranks of a tensor group hold the same: each sends its share, and whoever receives puts the shares together.
bool StageMessages::splits(std::int64_t bytes) const {
  const Parallelism& p = stage_.strategy.parallelism;
  return stage_.profile.splits_messages && p.degrees.tensor > 1 && !p.sequence_parallel && bytes % p.degrees.tensor == 0;
}

std::uint32_t StageMessages::boundary(const Action& a) { return enters(a.kind) ? frames_.lower_boundary(a.chunk, a.micro_batch) : frames_.upper_boundary(a.chunk, a.micro_batch); }

/// The micro-batch's gradient has left the chunk.
void StageMessages::through(const Action& a) {
  frames_.units.drop(a.micro_batch, chunks_[a.chunk].first);
  frames_.below.drop(a.micro_batch, static_cast<std::size_t>(a.chunk));
}

void StageMessages::wait_for(const Action& a) {
  const ChunkNeighbours& n = chunks_[a.chunk].neighbours;
  if ((enters(a.kind) ? n.previous : n.next) < 0) return;
  const auto place = static_cast<std::size_t>(a.chunk);
  const SharedFrames& boundaries = enters(a.kind) ? frames_.below : frames_.above;
  // A gradient that was sent has taken its frame with it; the stream's order keeps later messages behind it.
  if (boundaries.has(a.micro_batch, place)) wait(activation(a.kind), boundaries.at(a.micro_batch, place), a.micro_batch);
}

void StageMessages::wait_for_input(int chunk, int micro_batch) {
  const ChunkNeighbours& n = chunks_[chunk].neighbours;
  if (n.previous < 0 || n.gathered) return;
  wait(true, frames_.lower_boundary(chunk, micro_batch), micro_batch);
  gather(chunks_[chunk].bytes_in, micro_batch);
}

void StageMessages::wait_for_gradient(int chunk, int micro_batch) {
  const ChunkNeighbours& n = chunks_[chunk].neighbours;
  if (n.next < 0 || n.gathered) return;
  wait(false, frames_.upper_boundary(chunk, micro_batch), micro_batch);
  gather(chunks_[chunk].bytes_out, micro_batch);
}

void StageMessages::wait(bool forward, std::uint32_t frame, int micro_batch) {
  std::optional<std::uint32_t>& block = forward ? waits_for_activation_ : waits_for_gradient_;
  if (!block) {
    plan::BlockWriter w(forward ? "wait for activation message" : "wait for gradient message");
    w.wait(Stream::compute, forward ? StageFrames::kForwardEvent : StageFrames::kBackwardEvent);
    block = stage_.builder.add_block(w.take());
  }
  plan::Call call{.block = *block, .phase = Phase::communication, .micro_batch = micro_batch};
  call.frames[static_cast<std::size_t>(Frame::own)] = frame;
  stage_.append(call);
}

void StageMessages::gather(std::int64_t bytes, int micro_batch) {
  if (!splits(bytes)) return;
  auto it = gathers_.find(bytes);
  if (it == gathers_.end()) {
    plan::BlockWriter w("gather message " + std::to_string(bytes));
    w.collective(stage_.builder.collective({CollectiveKind::all_gather, plan::GroupAxis::tensor, Bytes{bytes}, "message"}), Stream::tensor, plan::kAfterCompute | plan::kComputeWaits,
                 stage_.profile.collective_host);
    it = gathers_.emplace(bytes, stage_.builder.add_block(w.take())).first;
  }
  stage_.append({.block = it->second, .phase = Phase::communication, .micro_batch = micro_batch});
}

}  // namespace rehearse::strategies
