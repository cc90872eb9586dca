#include <algorithm>

#include "calibrate/probe/cuda/blas.h"
#include "calibrate/probe/cuda/kernels.h"
#include "calibrate/probe/cuda/works.h"
#include "calibrate/probe/parameters.h"

namespace rehearse::calibrate {
namespace {

using Int = std::int64_t;

GemmShape gemm_shape(const Facts& p) {
  GemmShape s{whole(p, "m"), whole(p, "n"), whole(p, "k"), whole(p, "batch", 1), text(p, "dtype", "bf16"), text(p, "output_dtype"), text(p, "role", "forward"), flag(p, "accumulate")};
  if (s.dtype == "fp8" && s.output_dtype.empty()) s.output_dtype = "bf16";
  return s;
}

/// Operands of one shape, several sets, filled: all A, then all B, then all C.
struct GemmOperands {
  Int sets;
  std::size_t a, b, c;  // bytes of one set
  DeviceBuffer memory;

  GemmOperands(const GemmShape& s, Int at_least)
      : sets(0), a(rounded(s.a_bytes())), b(rounded(s.b_bytes())), c(rounded(s.c_bytes())) {
    sets = std::max(at_least, rotating_sets(a + b + c));
    const auto n = static_cast<std::size_t>(sets);
    memory = DeviceBuffer(n * (a + b + c));
    const ElementType type = element_type(s.dtype);
    // Weights as wide as models begin with; in fp8 frameworks scale them first, to where the format has its digits.
    const float weights = type == ElementType::fp8 ? 1.0f : 0.02f;
    fill_normal(memory.data(), static_cast<Int>(n * a / element_bytes(type)), type, 1.0f, 1, nullptr);
    fill_normal(memory.data() + n * a, static_cast<Int>(n * b / element_bytes(type)), type, weights, std::uint64_t{1} << 40, nullptr);
    REHEARSE_CUDA(cudaMemset(memory.data() + n * (a + b), 0, n * c));
    REHEARSE_CUDA(cudaDeviceSynchronize());
  }
  void enqueue(Gemm& gemm, Int number, cudaStream_t stream) const {
    const auto set = static_cast<std::size_t>(number % sets), n = static_cast<std::size_t>(sets);
    gemm.enqueue(memory.data() + set * a, memory.data() + n * a + set * b, memory.data() + n * (a + b) + set * c, stream);
  }
};

}  // namespace

Enqueue gemm_enqueue(const Facts& p, std::string* note) {
  const std::shared_ptr<Gemm> gemm = prepare_gemm(gemm_shape(p));
  const auto operands = std::make_shared<GemmOperands>(gemm_shape(p), 1);
  if (note != nullptr) *note = gemm->note() + "; operands rotate over " + std::to_string(operands->sets) + " sets";
  return [=](cudaStream_t stream, Int i) { operands->enqueue(*gemm, i, stream); };
}

std::unique_ptr<Work> gemm_work(const Facts& p) {
  std::string note;
  Enqueue enqueue = gemm_enqueue(p, &note);
  return kernel_work(std::move(enqueue), note);
}

std::unique_ptr<Work> grouped_gemm_work(const Facts& p) {
  if (text(p, "implementation", "sequence") != "sequence") throw NotPossible("the probe runs experts one after another only");
  const Int experts = whole(p, "groups");
  const std::shared_ptr<Gemm> gemm = prepare_gemm(gemm_shape(p));
  const auto operands = std::make_shared<GemmOperands>(gemm_shape(p), experts);
  // Many kernels per execution: the launch queue must not fill while the stream is held up.
  return kernel_work(
      [=](cudaStream_t stream, Int i) {
        for (Int e = 0; e < experts; ++e) operands->enqueue(*gemm, i * experts + e, stream);
      },
      "balanced: every expert has the same tokens; " + gemm->note(), std::max<Int>(1, 300 / experts));
}

}  // namespace rehearse::calibrate
