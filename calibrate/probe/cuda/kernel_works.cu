// The probe's own kernels: those bound by memory, and attention.
#include "calibrate/probe/cuda/attention.h"
#include "calibrate/probe/cuda/kernels.h"
#include "calibrate/probe/cuda/works.h"
#include "calibrate/probe/parameters.h"

namespace rehearse::calibrate {

using Int = std::int64_t;

std::unique_ptr<Work> memory_kernel_work(const Facts& p) {
  const MemoryKernel k{text(p, "kernel"), whole(p, "elements"), whole(p, "row"), element_type(text(p, "dtype", "bf16"))};
  const std::size_t bytes = operand_bytes(k);
  const Int sets = rotating_sets(bytes);
  const auto memory = std::make_shared<DeviceBuffer>(static_cast<std::size_t>(sets) * bytes);
  // As 16-bit numbers everywhere: any two of them are a usable fp32 number too.
  fill_normal(memory->data(), static_cast<Int>(memory->bytes() / 2), ElementType::bf16, 1.0f, 11, nullptr);
  REHEARSE_CUDA(cudaDeviceSynchronize());
  return kernel_work([=](cudaStream_t stream, Int i) { launch_memory_kernel(k, memory->data() + static_cast<std::size_t>(i % sets) * bytes, stream); },
                     "the probe's own kernel; operands rotate over " + std::to_string(sets) + " sets");
}

std::unique_ptr<Work> attention_work(const Facts& p, bool backward) {
  if (text(p, "implementation") != "rehearse-tiled" || text(p, "dtype") != "bf16") throw NotPossible("the probe has its own attention kernel for bf16 only");
  const AttentionShape s{whole(p, "batch"), whole(p, "heads"), whole(p, "kv_heads"), whole(p, "query_length"), whole(p, "key_length"), whole(p, "head_dim"), flag(p, "causal")};
  const auto q = static_cast<std::size_t>(s.batch * s.heads * s.query_length * s.head_dim), k = static_cast<std::size_t>(s.batch * s.kv_heads * s.key_length * s.head_dim);
  const auto expanded = static_cast<std::size_t>(s.batch * s.heads * s.key_length * s.head_dim), rows = static_cast<std::size_t>(s.batch * s.heads * s.query_length);
  const std::size_t sizes[] = {2 * q, 2 * k, 2 * k, 2 * q, 4 * rows, 2 * q, 4 * rows, backward ? 2 * q : 0, backward ? 2 * expanded : 0, backward ? 2 * expanded : 0};
  std::size_t total = 0;
  for (std::size_t bytes : sizes) total += rounded(bytes);
  const auto memory = std::make_shared<DeviceBuffer>(total);
  fill_normal(memory->data(), static_cast<Int>(total / 2), ElementType::bf16, 1.0f, 13, nullptr);
  char* at = memory->data();
  void* tensors[10];
  for (int i = 0; i < 10; ++i) {
    tensors[i] = at;
    at += rounded(sizes[i]);
  }
  const AttentionTensors t{tensors[0], tensors[1], tensors[2], tensors[3], static_cast<float*>(tensors[4]), tensors[5], static_cast<float*>(tensors[6]), tensors[7], tensors[8], tensors[9]};
  attention_forward(s, t, nullptr);  // backward needs its logsumexp
  REHEARSE_CUDA(cudaDeviceSynchronize());
  return kernel_work(
      [=](cudaStream_t stream, Int) {
        (void)memory;
        backward ? attention_backward(s, t, stream) : attention_forward(s, t, stream);
      },
      backward ? "three kernels; scores are computed twice; gradients of shared key heads are not added up" : "");
}

}  // namespace rehearse::calibrate
