#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "calibrate/probe/cuda/check.h"
#include "calibrate/probe/cuda/kernels.h"

namespace rehearse::calibrate {
namespace {

using bf16 = __nv_bfloat16;

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

__global__ void block_kernel(const volatile int* go, std::uint64_t most_ns) {
  std::uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (*go == 0 && now - begin < most_ns);
}

template <int Bytes>
struct Arguments {
  char bytes[Bytes];
};
template <int Bytes>
__global__ void empty_kernel(Arguments<Bytes>) {}

__device__ float to_float(float v) { return v; }
__device__ float to_float(bf16 v) { return __bfloat162float(v); }
__device__ float to_float(__half v) { return __half2float(v); }
template <typename T> __device__ T from_float(float v);
template <> __device__ float from_float<float>(float v) { return v; }
template <> __device__ bf16 from_float<bf16>(float v) { return __float2bfloat16(v); }
template <> __device__ __half from_float<__half>(float v) { return __float2half(v); }

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
  extern __shared__ char shared[];
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

int blocks_for(std::int64_t items) {
  int device = 0, sms = 132;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  return static_cast<int>(std::max<std::int64_t>(1, std::min<std::int64_t>((items + 255) / 256, std::int64_t{sms} * 16)));
}

template <typename T>
void launch(const MemoryKernel& k, char* at, cudaStream_t stream) {
  const std::int64_t n = k.elements, e = sizeof(T);
  auto* a = reinterpret_cast<Pack<T>*>(at);
  auto* b = reinterpret_cast<Pack<T>*>(at + n * e);
  auto* c = reinterpret_cast<Pack<T>*>(at + 2 * n * e);
  const int grid = blocks_for(n / Pack<T>::kSize);
  const int rows = k.row > 0 ? static_cast<int>(n / k.row) : 0, row = static_cast<int>(k.row);
  const std::size_t kept = static_cast<std::size_t>(k.row) * sizeof(T);
  if (k.kernel == "copy") copy_kernel<T><<<grid, 256, 0, stream>>>(a, b, n);
  else if (k.kernel == "add") add_kernel<T><<<grid, 256, 0, stream>>>(a, b, c, n);
  else if (k.kernel == "cast") cast_kernel<T><<<blocks_for(n / 4), 256, 0, stream>>>(reinterpret_cast<float4*>(at), reinterpret_cast<T*>(at + 4 * n), n);
  else if (k.kernel == "rms_norm") row_kernel<T, RowKernel::rms_norm><<<rows, 256, kept, stream>>>(a, b, row);
  else if (k.kernel == "layer_norm") row_kernel<T, RowKernel::layer_norm><<<rows, 256, kept, stream>>>(a, b, row);
  else if (k.kernel == "softmax") row_kernel<T, RowKernel::softmax><<<rows, 256, kept, stream>>>(a, b, row);
  else if (k.kernel == "cross_entropy") cross_entropy_kernel<T><<<rows, 1024, 0, stream>>>(a, reinterpret_cast<float*>(at + n * e), row);
  else if (k.kernel == "adam")
    adam_kernel<T><<<blocks_for(n / 4), 256, 0, stream>>>(reinterpret_cast<float4*>(at), reinterpret_cast<float4*>(at + 4 * n), reinterpret_cast<float4*>(at + 8 * n),
                                                          reinterpret_cast<T*>(at + 12 * n), reinterpret_cast<T*>(at + 12 * n + n * e), n);
  else if (k.kernel == "memset") REHEARSE_CUDA(cudaMemsetAsync(at, 1, static_cast<std::size_t>(n * e), stream));
  else if (k.kernel == "reduction") squares_kernel<T><<<grid, 256, 0, stream>>>(a, reinterpret_cast<float*>(at + n * e), n);
  else throw NotPossible("the probe has no kernel " + k.kernel);
  REHEARSE_CUDA(cudaGetLastError());
}

}  // namespace

ElementType element_type(const std::string& dtype) {
  if (dtype == "fp64") return ElementType::fp64;
  if (dtype == "fp16") return ElementType::fp16;
  if (dtype == "bf16") return ElementType::bf16;
  if (dtype == "fp8") return ElementType::fp8;
  return ElementType::fp32;
}

std::size_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::fp64: return 8;
    case ElementType::fp32: return 4;
    case ElementType::fp8: return 1;
    default: return 2;
  }
}

void fill_normal(void* data, std::int64_t elements, ElementType type, float deviation, std::uint64_t seed, cudaStream_t stream) {
  const int grid = blocks_for(elements);
  switch (type) {
    case ElementType::fp64: fill_kernel<<<grid, 256, 0, stream>>>(static_cast<double*>(data), elements, deviation, seed); break;
    case ElementType::fp32: fill_kernel<<<grid, 256, 0, stream>>>(static_cast<float*>(data), elements, deviation, seed); break;
    case ElementType::fp16: fill_kernel<<<grid, 256, 0, stream>>>(static_cast<__half*>(data), elements, deviation, seed); break;
    case ElementType::bf16: fill_kernel<<<grid, 256, 0, stream>>>(static_cast<bf16*>(data), elements, deviation, seed); break;
    case ElementType::fp8: fill_kernel<<<grid, 256, 0, stream>>>(static_cast<__nv_fp8_e4m3*>(data), elements, deviation, seed); break;
  }
  REHEARSE_CUDA(cudaGetLastError());
}

void block_stream(const volatile int* go, std::uint64_t most_ns, cudaStream_t stream) {
  block_kernel<<<1, 1, 0, stream>>>(go, most_ns);
  REHEARSE_CUDA(cudaGetLastError());
}

void launch_empty(std::int64_t argument_bytes, cudaStream_t stream) {
  if (argument_bytes <= 8) empty_kernel<8><<<1, 32, 0, stream>>>({});
  else if (argument_bytes <= 256) empty_kernel<256><<<1, 32, 0, stream>>>({});
  else empty_kernel<2048><<<1, 32, 0, stream>>>({});
}

std::size_t operand_bytes(const MemoryKernel& k) {
  const std::size_t n = static_cast<std::size_t>(k.elements), e = element_bytes(k.type);
  std::size_t bytes = 2 * n * e;
  if (k.kernel == "add") bytes = 3 * n * e;
  if (k.kernel == "cast") bytes = n * (4 + e);
  if (k.kernel == "adam") bytes = n * (12 + 2 * e);
  if (k.kernel == "cross_entropy") bytes = n * e + 4 * static_cast<std::size_t>(k.elements / k.row);
  if (k.kernel == "memset" || k.kernel == "reduction") bytes = n * e + 16;
  return (bytes + 255) / 256 * 256;
}

void launch_memory_kernel(const MemoryKernel& k, char* operands, cudaStream_t stream) {
  if (k.row > 0 && k.kernel != "cross_entropy" && k.row * static_cast<std::int64_t>(element_bytes(k.type)) > 48 * 1024)
    throw NotPossible("the probe's row kernels take rows of up to 48 KiB");
  switch (k.type) {
    case ElementType::fp32: return launch<float>(k, operands, stream);
    case ElementType::fp16: return launch<__half>(k, operands, stream);
    case ElementType::bf16: return launch<bf16>(k, operands, stream);
    default: throw NotPossible("the probe's memory kernels are for fp32, fp16 and bf16");
  }
}

}  // namespace rehearse::calibrate
