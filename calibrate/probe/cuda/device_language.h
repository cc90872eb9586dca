// The few words of CUDA that the probe's kernels speak beyond C++: tensor-core products, transposed loads, conversions.
// Leaves out the kernels. The tests speak them on the CPU instead (tests/unit/calibrate/cuda_on_host.h).
#pragma once

#ifndef REHEARSE_CUDA_ON_HOST
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define REHEARSE_UNROLL _Pragma("unroll")

namespace rehearse::calibrate {
namespace {

using bf16 = __nv_bfloat16;

__device__ inline char* dynamic_shared_memory() {
  extern __shared__ __align__(16) char shared[];
  return shared;
}

/// c += a times b, all 32 lanes together: mma.sync m16n8k16.
__device__ inline void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two 8 x 8 tiles, transposed: lanes 0 to 7 name the rows of the first, 8 to 15 those of the second: ldmatrix.x2.trans.
__device__ inline void load_transposed(unsigned& b0, unsigned& b1, const bf16* row) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(b0), "=r"(b1) : "r"(address));
}

__device__ inline unsigned packed(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&both);
}

__device__ inline float to_float(float v) { return v; }
__device__ inline float to_float(bf16 v) { return __bfloat162float(v); }
__device__ inline float to_float(__half v) { return __half2float(v); }
template <typename T> __device__ T from_float(float v);
template <> __device__ inline float from_float<float>(float v) { return v; }
template <> __device__ inline bf16 from_float<bf16>(float v) { return __float2bfloat16(v); }
template <> __device__ inline __half from_float<__half>(float v) { return __float2half(v); }

}  // namespace
}  // namespace rehearse::calibrate
#endif
