// Rotary embedding without a kernel of its own, as Megatron-Core has it: cosines and sines are made of the angles for each tensor, and what of a
// head does not rotate is joined on, were it empty. Packed documents are rotated one after the other.
// Source: megatron/core/models/common/embeddings/rope_utils.py of 2026-06 (d30e165203), _apply_rotary_pos_emb_bshd and _apply_rotary_pos_emb_thd;
// kernels as counted by torch.utils._python_dispatch on that code (PyTorch 2.13): 12 forward and 7 backward; of each document 13 and 11.
#include "strategies/layer/operators.h"

namespace rehearse::strategies {

using model::KernelKind;

namespace {

void add(std::vector<Item>& list, const std::vector<Item>& more) { list.insert(list.end(), more.begin(), more.end()); }

}  // namespace

bool Operators::rotates_by_document() const {
  const Training& t = c_.strategy.training;
  return c_.profile.rope_by_document && t.attended_length() < t.sequence_length;
}

/// Samples of a batch turn by the same angles; packed documents have angles of their own.
std::int64_t Operators::angles_bytes(std::int64_t turning) const { return (rotates_by_document() ? c_.tokens : c_.sequence) * turning * c_.element(); }

/// One tensor of `bytes`, of which `turning` rotate; its angles take `table` bytes in the activations' format.
Operators::Rotation Operators::rotate_once(std::int64_t bytes, std::int64_t turning, std::int64_t table, bool interleaved) const {
  const auto e = c_.element();
  const std::int64_t wide = table / e * 4;
  const auto apart = [&](const char* name, std::int64_t read, std::int64_t written) { return strided(name, read, written, e); };
  Rotation r;
  // Every second element is brought to its half first: one copy, and in backward two fills with zeros, two copies into them and a sum.
  if (interleaved) add(r.forward, {alloc(0, turning), apart("rope order halves", turning, turning)});
  for (const char* name : {"rope cosines", "rope sines"})
    add(r.forward, {alloc(1, wide), kernel(name, wide, wide), alloc(2, wide), kernel("rope scale", wide, wide), free(1), kernel("rope cast", wide, table), free(2)});
  add(r.forward, {alloc(1, turning), apart("rope mul cos", turning, turning), alloc(2, turning / 2), apart("rope neg", turning / 2, turning / 2), alloc(3, turning), apart("rope cat", turning, turning), free(2),
                     alloc(2, turning), apart("rope mul sin", turning, turning), free(3), alloc(3, turning), kernel("rope add", 2 * turning, turning), free(1), free(2)});
  const bool joins = c_.profile.joins_unrotated || turning < bytes;
  if (joins) r.forward.push_back(kernel("rope cat parts", bytes, bytes));
  r.forward.push_back(free(3));
  if (interleaved) r.forward.push_back(free(0));

  add(r.backward, {alloc(0, turning), apart("rope mul sin backward", turning, turning), alloc(1, turning / 2), apart("rope neg backward", turning / 2, turning / 2), alloc(2, turning),
                      apart("rope cat backward", turning, turning), free(0), free(1), alloc(0, turning), apart("rope mul cos backward", turning, turning), alloc(1, turning), kernel("rope gradient add", 2 * turning, turning), free(0), free(2)});
  if (interleaved) {
    for (int half = 0; half < 2; ++half) add(r.backward, {alloc(2 + half, turning), kernel("rope zero fill", 0, turning, KernelKind::memset), apart("rope select backward", turning / 2, turning / 2)});
    add(r.backward, {kernel("rope gradient add", 2 * turning, turning), free(2), free(3)});
  }
  if (joins) add(r.backward, {alloc(0, bytes), kernel("rope zero fill", 0, bytes, KernelKind::memset), kernel("rope gradient add", 2 * bytes, bytes), free(0)});
  r.backward.push_back(free(1));
  return r;
}

Operators::Rotation Operators::rotation(std::int64_t heads, std::int64_t head_dim, std::int64_t turning, bool interleaved) const {
  const std::int64_t table = angles_bytes(turning), bytes = c_.tokens * heads * head_dim * c_.element(), turning_bytes = c_.tokens * heads * turning * c_.element();
  if (!rotates_by_document()) return rotate_once(bytes, turning_bytes, table, interleaved);
  const std::int64_t documents = c_.batch * c_.strategy.training.documents();
  const std::int64_t part = bytes / documents;
  const Rotation one = rotate_once(part, turning_bytes / documents, table / documents, interleaved);
  constexpr int kPlaced = 8, kWhole = 9, kSlice = 10;   // temporaries beside those of one document
  Rotation all;
  // Their lengths are read from the device (tolist, item).
  all.forward = {kernel("document lengths", documents * 8, documents * 4), kernel("document lengths", documents * 4, documents * 4), {.kind = Item::Kind::host_sync}};
  for (std::int64_t d = 0; d < documents; ++d) {
    add(all.forward, {alloc(kPlaced, part)});
    add(all.forward, one.forward);
    add(all.forward, {kernel("rope into place", part, part), free(kPlaced)});
    // A view is written in place (CopySlices): the whole gradient is copied, the document's part again, and zeros take its place in what others read.
    add(all.backward, {alloc(kWhole, bytes), kernel("rope gradient copy", bytes, bytes), alloc(kSlice, part), kernel("rope slice copy", part, part)});
    if (d + 1 < documents) add(all.backward, {kernel("rope zero fill", 0, part, KernelKind::memset), kernel("rope slice zero", part, part)});
    add(all.backward, one.backward);
    add(all.backward, {free(kSlice), free(kWhole)});
  }
  all.backward.push_back(kernel("rope split backward", bytes, bytes));
  return all;
}

}  // namespace rehearse::strategies
