// The probe's own kernels, as functions that launch them. Leaves out GEMMs (blas.h) and attention (attention.h).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

namespace rehearse::calibrate {

enum class ElementType { fp64, fp32, fp16, bf16, fp8 };
ElementType element_type(const std::string& dtype);  // tf32 is stored as fp32
std::size_t element_bytes(ElementType type);

/// Normal random numbers of this standard deviation: zeros would draw less power, so the clocks would be too high.
void fill_normal(void* data, std::int64_t elements, ElementType type, float deviation, std::uint64_t seed, cudaStream_t stream);

/// Keeps the stream busy until *go becomes 1, but at most `most_ns`: what is launched meanwhile then runs without gaps.
void block_stream(const volatile int* go, std::uint64_t most_ns, cudaStream_t stream);

/// An empty kernel with this many bytes of arguments (8, 256 or 2048).
void launch_empty(std::int64_t argument_bytes, cudaStream_t stream);

/// The kernels of `memory_kernel`, by its parameters. `a`, `b`, `c`, `d`, `e`: operands as MemoryOperands lays them out.
struct MemoryKernel {
  std::string kernel;
  std::int64_t elements = 0, row = 0;
  ElementType type = ElementType::bf16;
};
/// Bytes of all operands of one execution.
std::size_t operand_bytes(const MemoryKernel& k);
void launch_memory_kernel(const MemoryKernel& k, char* operands, cudaStream_t stream);

}  // namespace rehearse::calibrate
