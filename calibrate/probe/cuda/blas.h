// Matrix products by cuBLASLt, with its first heuristic choice: what frameworks get without tuning.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>

namespace rehearse::calibrate {

struct GemmShape {
  std::int64_t m = 1, n = 1, k = 1, batch = 1;  // row-major C[m,n] = A[m,k] B[k,n], see operations.cpp
  std::string dtype = "bf16", output_dtype, role = "forward";
  bool accumulate = false;

  std::size_t a_bytes() const, b_bytes() const, c_bytes() const;
};

/// One shape with its algorithm chosen. Throws NotPossible when cuBLASLt is not there or has no algorithm.
class Gemm {
 public:
  virtual ~Gemm() = default;
  /// `a`: tokens x features (weight_gradient: the output's gradient); `b`: weights (weight_gradient: the input).
  /// Stored as the layer stores them: forward B is [n,k]; data_gradient B is [k,n]; weight_gradient A is [k,m], B is [k,n].
  virtual void enqueue(const void* a, const void* b, void* c, cudaStream_t stream) = 0;
  virtual std::string note() const = 0;
};
std::unique_ptr<Gemm> prepare_gemm(const GemmShape& shape);

/// "13.0.2", or empty when it is not there.
std::string cublaslt_version();

}  // namespace rehearse::calibrate
