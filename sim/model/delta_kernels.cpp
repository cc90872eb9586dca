// Legend: T tokens, H heads of the values, K and V widths of a head's keys and values, C tokens of a chunk.
#include "sim/model/delta_kernels.h"

namespace rehearse::model {

namespace {

/// Kernels by what they read, write and multiply.
class Delta {
 public:
  explicit Delta(const DeltaShape& shape) : s_(shape) {}

  /// `keys`, `values`: products of a chunk's tokens over a head's keys or values, 2 T H C K or V; `inside`: of chunks' triangles, 2 T H C C.
  double within(int keys, int values, int inside = 0) const { return 2 * heads() * DeltaShape::kChunk * static_cast<double>(keys * s_.key_dim + values * s_.value_dim + inside * DeltaShape::kChunk); }
  /// Products of tokens with a state, 2 T H K V.
  double with_state(int products) const { return products * 2 * heads() * static_cast<double>(s_.key_dim * s_.value_dim); }

  KernelSpec kernel(const char* name, std::int64_t read, std::int64_t written, double flops, bool in_turn = false) const {
    return {.kind = KernelKind::delta_rule, .dtype = s_.dtype, .output_dtype = s_.dtype, .bytes_read = read, .bytes_written = written,
            .elements = in_turn ? (s_.sequence + DeltaShape::kChunk - 1) / DeltaShape::kChunk : 0, .flops = flops, .name = name};
  }
  KernelSpec added(const char* name, std::int64_t bytes) const { return {.dtype = s_.dtype, .output_dtype = s_.dtype, .bytes_read = 2 * bytes, .bytes_written = bytes, .name = name}; }

 private:
  double heads() const { return static_cast<double>(s_.tokens()) * static_cast<double>(s_.value_heads); }
  const DeltaShape& s_;
};

KernelSpec states_of(const DeltaShape& s, const Delta& make) {
  return make.kernel("delta states", s.keys() + s.wide_keys() + s.values() + s.decays(), s.states() + s.values(), make.with_state(2), true);
}

}  // namespace

DeltaShape DeltaShape::of(const DeltaNet& mixer, std::int64_t samples, std::int64_t sequence, std::int64_t ranks, DType dtype) {
  return {.samples = samples, .sequence = sequence, .key_heads = mixer.key_heads / ranks, .value_heads = mixer.value_heads / ranks, .key_dim = mixer.key_dim, .value_dim = mixer.value_dim, .dtype = dtype};
}

DeltaForward delta_forward(const DeltaShape& s) {
  const Delta make(s);
  return {.sums = make.kernel("delta sums", s.decays(), s.decays(), 0),
          .within = make.kernel("delta keys and values", s.keys() + s.values() + s.decays() + s.steps(), s.wide_keys() + s.values() + s.inverses(), make.within(2, 1, 1)),
          .states = states_of(s, make),
          .output = make.kernel("delta output", 2 * s.keys() + s.values() + s.states() + s.decays(), s.values(), make.with_state(1) + make.within(1, 1))};
}

DeltaBackward delta_backward(const DeltaShape& s) {
  const Delta make(s);
  DeltaBackward out{.within_again = make.kernel("delta keys and values", s.keys() + s.values() + s.inverses() + s.decays() + s.steps(), s.wide_keys() + s.values(), make.within(1, 1)),
                    .states_again = states_of(s, make),
                    .local = make.kernel("delta local values gradient", 2 * s.keys() + s.values() + s.decays(), s.values(), make.within(1, 1)),
                    .states = make.kernel("delta states gradient", s.keys() + s.wide_keys() + 2 * s.values() + s.decays(), s.states() + s.values(), make.with_state(3), true),
                    .operands = make.kernel("delta operands gradient", 2 * s.keys() + 3 * s.values() + 2 * s.states() + s.decays(), 3 * s.wide_keys() + s.decays(), make.with_state(3) + make.within(3, 1)),
                    .within = make.kernel("delta keys and values gradient", s.keys() + 2 * s.values() + s.inverses() + s.wide_keys() + s.decays() + s.steps(),
                                          s.wide_keys() + s.values() + 2 * s.decays(), make.within(4, 3, 2)),
                    .add_keys = make.added("delta keys gradient sum", s.wide_keys()),
                    .add_decays = make.added("delta decays gradient sum", s.decays()),
                    .sums = make.kernel("delta sums backward", s.decays(), s.decays(), 0)};
  for (KernelSpec* k : {&out.local, &out.states, &out.operands, &out.within, &out.sums}) k->role = GemmRole::data_gradient;
  return out;
}

}  // namespace rehearse::model
