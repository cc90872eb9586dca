#include <cuda_bf16.h>

#include "calibrate/probe/cuda/attention.h"
#include "calibrate/probe/cuda/attention_kernels.h"
#include "calibrate/probe/cuda/check.h"

namespace rehearse::calibrate {
namespace {

AttentionArguments arguments(const AttentionShape& s, const AttentionTensors& t) {
  if (s.query_length % kTile != 0 || s.key_length % kTile != 0 || (s.head_dim != 64 && s.head_dim != 128) || s.heads % s.kv_heads != 0)
    throw NotPossible("the probe's attention takes lengths that are multiples of 64, and heads of 64 or 128");
  if (s.causal && s.query_length != s.key_length) throw NotPossible("the probe's causal attention takes as many keys as queries");
  return {static_cast<const bf16*>(t.query), static_cast<const bf16*>(t.key), static_cast<const bf16*>(t.value), static_cast<const bf16*>(t.output_gradient),
          static_cast<bf16*>(t.output), static_cast<bf16*>(t.query_gradient), static_cast<bf16*>(t.key_gradient), static_cast<bf16*>(t.value_gradient),
          t.logsumexp, t.delta, static_cast<int>(s.heads), static_cast<int>(s.kv_heads), static_cast<int>(s.query_length), static_cast<int>(s.key_length),
          s.causal, 1.0f / sqrtf(static_cast<float>(s.head_dim))};
}

template <typename Kernel>
void launch(Kernel kernel, int tiles, dim3 grid, int d, const AttentionArguments& a, cudaStream_t stream) {
  const int bytes = tiles * kTile * (d + kPad) * static_cast<int>(sizeof(bf16));
  REHEARSE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<grid, 32 * kWarps, static_cast<std::size_t>(bytes), stream>>>(a);
  REHEARSE_CUDA(cudaGetLastError());
}

template <int D>
void forward(const AttentionShape& s, const AttentionArguments& a, cudaStream_t stream) {
  launch(forward_kernel<D>, 3, dim3(a.queries / kTile, static_cast<unsigned>(s.batch * s.heads)), D, a, stream);
}

template <int D>
void backward(const AttentionShape& s, const AttentionArguments& a, cudaStream_t stream) {
  const std::int64_t rows = s.batch * s.heads * s.query_length;
  delta_kernel<D><<<static_cast<unsigned>((rows + 7) / 8), 256, 0, stream>>>(a, rows);
  const auto heads = static_cast<unsigned>(s.batch * s.heads);
  launch(key_value_gradient_kernel<D>, 4, dim3(a.keys / kTile, heads), D, a, stream);
  launch(query_gradient_kernel<D>, 4, dim3(a.queries / kTile, heads), D, a, stream);
}

}  // namespace

void attention_forward(const AttentionShape& shape, const AttentionTensors& t, cudaStream_t stream) {
  const AttentionArguments a = arguments(shape, t);
  shape.head_dim == 64 ? forward<64>(shape, a, stream) : forward<128>(shape, a, stream);
}

void attention_backward(const AttentionShape& shape, const AttentionTensors& t, cudaStream_t stream) {
  const AttentionArguments a = arguments(shape, t);
  shape.head_dim == 64 ? backward<64>(shape, a, stream) : backward<128>(shape, a, stream);
}

}  // namespace rehearse::calibrate
