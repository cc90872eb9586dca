// The kernels bound by memory themselves, so that the tests can run them on the CPU too (tests/unit/calibrate/cuda_on_host.h).
// Leaves out launching them (kernels.cu).
#pragma once

#include <cstdint>

#include "calibrate/probe/cuda/device_language.h"

namespace rehearse::calibrate {
namespace {

__device__ std::uint64_t mixed(std::uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

template <typename T>
__global__ void fill_kernel(T* out, std::int64_t n, float deviation, std::uint64_t seed) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < n; i += std::int64_t{gridDim.x} * blockDim.x) {
    const std::uint64_t bits = mixed(seed + static_cast<std::uint64_t>(i));
    const float u = (static_cast<float>(bits >> 40) + 1.0f) * 0x1p-24f, v = static_cast<float>(bits & 0xFFFFFF) * 0x1p-24f;
    out[i] = static_cast<T>(deviation * sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * v));
  }
}

template <int Bytes>
struct Arguments {
  char bytes[Bytes];
};
template <int Bytes>
__global__ void empty_kernel(Arguments<Bytes>) {}

/// 16 bytes at a time.
template <typename T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T v[kSize];
};

template <typename T, typename F>
__device__ void for_packs(std::int64_t n, F f) {
  const std::int64_t packs = n / Pack<T>::kSize;
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < packs; i += std::int64_t{gridDim.x} * blockDim.x) f(i);
}

template <typename T>
__global__ void copy_kernel(const Pack<T>* a, Pack<T>* out, std::int64_t n) {
  for_packs<T>(n, [&](std::int64_t i) { out[i] = a[i]; });
}
template <typename T>
__global__ void add_kernel(const Pack<T>* a, const Pack<T>* b, Pack<T>* out, std::int64_t n) {
  for_packs<T>(n, [&](std::int64_t i) {
    const Pack<T> x = a[i], y = b[i];
    Pack<T> z;
    for (int j = 0; j < Pack<T>::kSize; ++j) z.v[j] = from_float<T>(to_float(x.v[j]) + to_float(y.v[j]));
    out[i] = z;
  });
}
template <typename T>
__global__ void cast_kernel(const float4* a, T* out, std::int64_t n) {
  struct alignas(4 * sizeof(T)) Four { T v[4]; };
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < n / 4; i += std::int64_t{gridDim.x} * blockDim.x) {
    const float4 x = a[i];
    reinterpret_cast<Four*>(out)[i] = {{from_float<T>(x.x), from_float<T>(x.y), from_float<T>(x.z), from_float<T>(x.w)}};
  }
}

/// Sum or maximum over the block; every thread gets it.
template <bool Maximum>
__device__ float over_block(float v) {
  __shared__ float warps[32];
  const auto both = [](float a, float b) { return Maximum ? fmaxf(a, b) : a + b; };
  for (int step = 16; step > 0; step /= 2) v = both(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x % 32 < blockDim.x / 32 ? warps[threadIdx.x % 32] : (Maximum ? -INFINITY : 0.0f);
  for (int step = 16; step > 0; step /= 2) v = both(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
  return v;
}

enum class RowKernel { rms_norm, layer_norm, softmax };

/// One block per row; the row stays in shared memory between the passes.
template <typename T, RowKernel Kind>
__global__ void row_kernel(const Pack<T>* in, Pack<T>* out, int row) {
  char* shared = dynamic_shared_memory();
  auto* kept = reinterpret_cast<Pack<T>*>(shared);
  const int packs = row / Pack<T>::kSize;
  in += std::int64_t{blockIdx.x} * packs;
  out += std::int64_t{blockIdx.x} * packs;
  float sum = 0, squares = 0, largest = -INFINITY;
  for (int i = threadIdx.x; i < packs; i += blockDim.x) {
    const Pack<T> p = kept[i] = in[i];
    for (const T& v : p.v) {
      const float x = to_float(v);
      sum += x, squares += x * x, largest = fmaxf(largest, x);
    }
  }
  float shift = 0, scale = 1;
  if (Kind == RowKernel::softmax) {
    shift = over_block<true>(largest);
    sum = 0;
    for (int i = threadIdx.x; i < packs; i += blockDim.x)
      for (const T& v : kept[i].v) sum += __expf(to_float(v) - shift);
    scale = 1 / over_block<false>(sum);
  } else {
    squares = over_block<false>(squares) / row;
    if (Kind == RowKernel::layer_norm) shift = over_block<false>(sum) / row, squares -= shift * shift;
    scale = rsqrtf(squares + 1e-5f);
  }
  for (int i = threadIdx.x; i < packs; i += blockDim.x) {
    Pack<T> p = kept[i];
    for (T& v : p.v) {
      const float x = to_float(v) - shift;
      v = from_float<T>((Kind == RowKernel::softmax ? __expf(x) : x) * scale);
    }
    out[i] = p;
  }
}

/// Loss of one row (log of the softmax at `target`), and its gradient in place of the logits.
template <typename T>
__global__ void cross_entropy_kernel(Pack<T>* logits, float* losses, int row) {
  const int packs = row / Pack<T>::kSize;
  logits += std::int64_t{blockIdx.x} * packs;
  float largest = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < packs; i += blockDim.x) {
    const Pack<T> p = logits[i];
    for (const T& v : p.v) {
      const float x = to_float(v), higher = fmaxf(largest, x);
      sum = sum * __expf(largest - higher) + __expf(x - higher);
      largest = higher;
    }
  }
  const float top = over_block<true>(largest);
  const float total = over_block<false>(largest == -INFINITY ? 0.0f : sum * __expf(largest - top));
  const int target = static_cast<int>(mixed(blockIdx.x) % static_cast<unsigned>(row));
  for (int i = threadIdx.x; i < packs; i += blockDim.x) {
    Pack<T> p = logits[i];
    for (int j = 0; j < Pack<T>::kSize; ++j) {
      const float x = to_float(p.v[j]), probability = __expf(x - top) / total;
      const bool hit = i * Pack<T>::kSize + j == target;
      if (hit) losses[blockIdx.x] = logf(total) + top - x;
      p.v[j] = from_float<T>(probability - (hit ? 1.0f : 0.0f));
    }
    logits[i] = p;
  }
}

template <typename T>
__global__ void adam_kernel(float4* p, float4* m, float4* v, const T* gradient, T* copy, std::int64_t n) {
  struct alignas(4 * sizeof(T)) Four { T v[4]; };
  constexpr float kRate = 1e-4f, kBeta1 = 0.9f, kBeta2 = 0.95f, kEpsilon = 1e-8f, kDecay = 0.1f;
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < n / 4; i += std::int64_t{gridDim.x} * blockDim.x) {
    float4 pi = p[i], mi = m[i], vi = v[i];
    const Four gi = reinterpret_cast<const Four*>(gradient)[i];
    Four half;
    const auto step = [&](float& q, float& first, float& second, int j) {
      const float g = to_float(gi.v[j]);
      first = kBeta1 * first + (1 - kBeta1) * g;
      second = kBeta2 * second + (1 - kBeta2) * g * g;
      q -= kRate * (first / (sqrtf(fabsf(second)) + kEpsilon) + kDecay * q);
      half.v[j] = from_float<T>(q);
    };
    step(pi.x, mi.x, vi.x, 0), step(pi.y, mi.y, vi.y, 1), step(pi.z, mi.z, vi.z, 2), step(pi.w, mi.w, vi.w, 3);
    p[i] = pi, m[i] = mi, v[i] = vi;
    reinterpret_cast<Four*>(copy)[i] = half;
  }
}

template <typename T>
__global__ void squares_kernel(const Pack<T>* a, float* out, std::int64_t n) {
  float sum = 0;
  for_packs<T>(n, [&](std::int64_t i) {
    const Pack<T> p = a[i];
    for (const T& v : p.v) sum += to_float(v) * to_float(v);
  });
  sum = over_block<false>(sum);
  if (threadIdx.x == 0) atomicAdd(out, sum);
}

}  // namespace
}  // namespace rehearse::calibrate
