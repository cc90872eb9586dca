// Nanoseconds per KernelModel::cost(). Goal: below 200 ns each, so that sweeps can price every kernel of a plan.
#include <benchmark/benchmark.h>

#include "hwmodels/device/kernel_model.h"

namespace {

using namespace rehearse;
using model::KernelKind;

model::KernelSpec spec_of(KernelKind kind, std::int64_t size) {
  model::KernelSpec s;
  s.kind = kind;
  s.batch = kind == KernelKind::grouped_gemm ? 8 : 1;
  s.m = s.n = s.k = size;
  s.heads = s.kv_heads = 32, s.query_length = s.key_length = size, s.head_dim = s.value_head_dim = 128;
  s.bytes_read = s.bytes_written = size * 1024;
  return s;
}

void cost_of(benchmark::State& state, KernelKind kind) {
  const hwmodels::KernelModel gpu(hwmodels::load_gpu("h100-sxm"));
  const model::KernelSpec s = spec_of(kind, state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(gpu.cost(s));
}

BENCHMARK_CAPTURE(cost_of, gemm, KernelKind::gemm)->Arg(64)->Arg(1024)->Arg(8192);
BENCHMARK_CAPTURE(cost_of, grouped_gemm, KernelKind::grouped_gemm)->Arg(256)->Arg(4096);
BENCHMARK_CAPTURE(cost_of, attention_forward, KernelKind::attention_forward)->Arg(4096);
BENCHMARK_CAPTURE(cost_of, attention_backward, KernelKind::attention_backward)->Arg(4096);
BENCHMARK_CAPTURE(cost_of, elementwise, KernelKind::elementwise)->Arg(4096);

}  // namespace
