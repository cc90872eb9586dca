// Legend: T tokens, I inner width, N state, Q chunk, G groups, A columns of a chunk's triangle that are computed.
#include "sim/model/scan_kernels.h"

#include <algorithm>

namespace rehearse::model {

namespace {

constexpr std::int64_t kBlock = 128;   // rows of a tile: columns beyond its last one are left out

double product(std::int64_t a, std::int64_t b) { return static_cast<double>(a) * static_cast<double>(b); }

/// Kernels by what they read, write and multiply.
class Scan {
 public:
  explicit Scan(const ScanShape& shape) : s_(shape) {}

  /// A kernel of the convolution's library, in CUDA.
  KernelSpec convolution(const char* name, std::int64_t read, std::int64_t written) const {
    return {.kind = KernelKind::convolution, .dtype = s_.dtype, .output_dtype = s_.dtype, .bytes_read = read, .bytes_written = written, .elements = written / s_.element(), .flops = static_cast<double>((read + written) / s_.element()), .name = name};
  }
  KernelSpec moved(const char* name, std::int64_t read, std::int64_t written) const {
    return {.kind = KernelKind::scan, .dtype = s_.dtype, .output_dtype = s_.dtype, .bytes_read = read, .bytes_written = written, .name = name};
  }
  /// `with_state`: products of tokens with a chunk's state, 2 T I N. `within`: products of tokens within a chunk, 2 T A I, and a decay for each pair.
  KernelSpec scan(const char* name, std::int64_t read, std::int64_t written, int with_state, int within) const {
    const std::int64_t columns = std::min(s_.chunk, (s_.chunk + kBlock) / 2);
    const double flops = 2 * product(s_.tokens, s_.inner()) * static_cast<double>(with_state * s_.state + within * columns);
    return {.kind = KernelKind::scan, .dtype = s_.dtype, .output_dtype = s_.dtype, .bytes_read = read, .bytes_written = written, .elements = within * s_.tokens * s_.heads * columns, .flops = flops, .name = name};
  }
  /// Products of the maps of a chunk's tokens, 2 T Q G N.
  KernelSpec maps(const char* name, std::int64_t read, std::int64_t written) const {
    return {.kind = KernelKind::scan, .dtype = s_.dtype, .output_dtype = s_.dtype, .bytes_read = read, .bytes_written = written, .flops = 2 * product(s_.tokens, s_.chunk) * static_cast<double>(s_.groups * s_.state), .name = name};
  }

 private:
  const ScanShape& s_;
};

}  // namespace

ScanShape ScanShape::of(const StateSpace& mixer, std::int64_t tokens, std::int64_t ranks, DType dtype) {
  return {.tokens = tokens, .heads = mixer.heads / ranks, .head_dim = mixer.head_dim, .groups = std::max<std::int64_t>(1, mixer.groups / ranks), .state = mixer.state,
          .chunk = mixer.chunk, .dtype = dtype};
}

ScanForward scan_forward(const ScanShape& s, bool gated) {
  const Scan make(s);
  const std::int64_t gate = gated ? s.values() : 0;
  return {.convolution = make.convolution("scan convolution", s.convolved(), s.convolved()),
          .sums = make.moved("scan sums", s.steps() / 4 * s.element(), 2 * s.steps()),
          .state = make.scan("scan states", s.values() + s.maps() + 2 * s.steps(), s.wide_states(), 1, 0),
          .pass = make.moved("scan pass states", s.wide_states(), s.states()),
          .products = make.maps("scan products", 2 * s.maps(), s.products()),
          .output = make.scan("scan output", s.products() + s.values() + s.maps() + s.states() + 2 * s.steps() + gate, s.values() + gate, 1, 1)};
}

ScanBackward scan_backward(const ScanShape& s) {
  const Scan make(s);
  ScanBackward out{.gate = make.moved("scan gate backward", 4 * s.values(), 2 * s.values()),
          .states = make.scan("scan states gradient", s.values() + s.maps(), s.wide_states(), 1, 0),
          .pass = make.moved("scan pass states backward", 2 * s.wide_states(), 2 * s.states()),
          .values = make.scan("scan values gradient", 2 * s.values() + s.products() + s.states() + s.maps(), s.values() + s.steps(), 1, 1),
          .input_map = make.scan("scan input map gradient", s.values() + s.states() + s.maps(), s.wide_maps(), 1, 0),
          .output_map = make.scan("scan output map gradient", s.values() + s.states() + s.maps(), s.wide_maps(), 1, 0),
          .products = make.scan("scan products gradient", 2 * s.values(), s.products(), 0, 1),
          .products_input = make.maps("scan products backward", s.products() + s.maps() + s.wide_maps(), s.maps()),
          .products_output = make.maps("scan products backward", s.products() + s.maps() + s.wide_maps(), s.maps()),
          .decays = make.scan("scan decays gradient", 2 * s.values() + s.products(), s.steps(), 0, 1),
          .sums = make.moved("scan sums backward", 6 * s.steps(), 3 * s.steps()),
          .convolution = make.convolution("scan convolution backward", 2 * s.convolved(), s.convolved())};
  for (KernelSpec* k : {&out.gate, &out.states, &out.pass, &out.values, &out.input_map, &out.output_map, &out.products, &out.products_input, &out.products_output, &out.decays, &out.sums, &out.convolution}) k->role = GemmRole::data_gradient;
  return out;
}

}  // namespace rehearse::model
