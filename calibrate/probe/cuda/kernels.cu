#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "calibrate/probe/cuda/check.h"
#include "calibrate/probe/cuda/kernels.h"
#include "calibrate/probe/cuda/memory_kernels.h"

namespace rehearse::calibrate {
namespace {

__global__ void block_kernel(const volatile int* go, std::uint64_t most_ns) {
  std::uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (*go == 0 && now - begin < most_ns);
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
