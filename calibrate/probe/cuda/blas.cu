#include <cublasLt.h>

#include "calibrate/probe/cuda/blas.h"
#include "calibrate/probe/cuda/check.h"
#include "calibrate/probe/cuda/kernels.h"
#include "calibrate/probe/cuda/library.h"

namespace rehearse::calibrate {
namespace {

constexpr std::size_t kWorkspace = std::size_t{32} << 20;  // PyTorch's on Hopper: ATen/cuda/CUDABlas.cpp

struct Blas {
  Library library{"cuBLASLt", {"libcublasLt.so." REHEARSE_CUDA_MAJOR, "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}};
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algorithm_get = nullptr;
  cublasStatus_t (*operation_create)(cublasLtMatmulDesc_t*, cublasComputeType_t, cudaDataType_t) = nullptr;
  cublasStatus_t (*operation_destroy)(cublasLtMatmulDesc_t) = nullptr;
  cublasStatus_t (*operation_set)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void*, size_t) = nullptr;
  cublasStatus_t (*layout_create)(cublasLtMatrixLayout_t*, cudaDataType_t, uint64_t, uint64_t, int64_t) = nullptr;
  cublasStatus_t (*layout_destroy)(cublasLtMatrixLayout_t) = nullptr;
  cublasStatus_t (*layout_set)(cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, const void*, size_t) = nullptr;
  cublasStatus_t (*preference_create)(cublasLtMatmulPreference_t*) = nullptr;
  cublasStatus_t (*preference_destroy)(cublasLtMatmulPreference_t) = nullptr;
  cublasStatus_t (*preference_set)(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void*, size_t) = nullptr;
  size_t (*version)() = nullptr;
  cublasLtHandle_t handle = nullptr;
  DeviceBuffer workspace;

  Blas() {
    library.find(create, "cublasLtCreate");
    library.find(matmul, "cublasLtMatmul");
    library.find(heuristic, "cublasLtMatmulAlgoGetHeuristic");
    library.find(algorithm_get, "cublasLtMatmulAlgoConfigGetAttribute");
    library.find(operation_create, "cublasLtMatmulDescCreate");
    library.find(operation_destroy, "cublasLtMatmulDescDestroy");
    library.find(operation_set, "cublasLtMatmulDescSetAttribute");
    library.find(layout_create, "cublasLtMatrixLayoutCreate");
    library.find(layout_destroy, "cublasLtMatrixLayoutDestroy");
    library.find(layout_set, "cublasLtMatrixLayoutSetAttribute");
    library.find(preference_create, "cublasLtMatmulPreferenceCreate");
    library.find(preference_destroy, "cublasLtMatmulPreferenceDestroy");
    library.find(preference_set, "cublasLtMatmulPreferenceSetAttribute");
    library.find(version, "cublasLtGetVersion");
    if (const cublasStatus_t s = create(&handle); s != CUBLAS_STATUS_SUCCESS) throw NotPossible("cuBLASLt does not start (status " + std::to_string(s) + ")");
    workspace = DeviceBuffer(kWorkspace);
  }
};

/// Made at the first use, for the GPU that is open then. Tried again after a failure.
Blas& blas() {
  static std::unique_ptr<Blas> library;
  if (library == nullptr) library = std::make_unique<Blas>();
  return *library;
}

void ok(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  if (cudaDeviceSynchronize() != cudaSuccess) throw DeviceLost(std::string("cuBLASLt: ") + what);
  throw NotPossible(std::string("cuBLASLt: ") + what + " failed with status " + std::to_string(status));
}

cudaDataType_t cuda_type(const std::string& dtype) {
  switch (element_type(dtype)) {
    case ElementType::fp64: return CUDA_R_64F;
    case ElementType::fp16: return CUDA_R_16F;
    case ElementType::bf16: return CUDA_R_16BF;
    case ElementType::fp8: return CUDA_R_8F_E4M3;
    case ElementType::fp32: break;
  }
  return CUDA_R_32F;
}

std::size_t bytes_of(const std::string& dtype) { return element_bytes(element_type(dtype)); }
std::string output_of(const GemmShape& s) { return s.output_dtype.empty() ? s.dtype : s.output_dtype; }

class LtGemm final : public Gemm {
 public:
  explicit LtGemm(const GemmShape& s) : shape_(s) {
    Blas& lt = blas();
    // cuBLASLt is column-major: it computes the transpose of C, so its first operand is our B and its m our n.
    // fp8 is multiplied in one layout only (both with the summed dimension innermost), to which frameworks transpose.
    const bool fp8 = s.dtype == "fp8", forward = s.role == "forward" || fp8, weights = s.role == "weight_gradient" && !fp8;
    const cublasComputeType_t compute = s.dtype == "tf32" ? CUBLAS_COMPUTE_32F_FAST_TF32 : s.dtype == "fp64" ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
    ok(lt.operation_create(&operation_, compute, s.dtype == "fp64" ? CUDA_R_64F : CUDA_R_32F), "a description of the product");
    const cublasOperation_t first = forward ? CUBLAS_OP_T : CUBLAS_OP_N, second = weights ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(CUBLASLT_MATMUL_DESC_TRANSA, first);
    set(CUBLASLT_MATMUL_DESC_TRANSB, second);
    if (fp8 && s.role == "forward") set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});  // as PyTorch and TE do: gradients accumulate exactly
    layout(b_, s.dtype, forward ? s.k : s.n, forward ? s.n : s.k);
    layout(a_, s.dtype, weights ? s.m : s.k, weights ? s.k : s.m);
    layout(c_, output_of(s), s.n, s.m);
    cublasLtMatmulPreference_t preference = nullptr;
    ok(lt.preference_create(&preference), "a preference");
    lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace, sizeof kWorkspace);
    int found = 0;
    const cublasStatus_t status = lt.heuristic(lt.handle, operation_, b_, a_, c_, c_, preference, 1, &choice_, &found);
    lt.preference_destroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS || found == 0)
      throw NotPossible("cuBLASLt has no algorithm for it (status " + std::to_string(status) + ")");
  }
  ~LtGemm() override {
    for (cublasLtMatrixLayout_t l : {a_, b_, c_})
      if (l != nullptr) blas().layout_destroy(l);
    if (operation_ != nullptr) blas().operation_destroy(operation_);
  }

  void enqueue(const void* a, const void* b, void* c, cudaStream_t stream) override {
    const bool wide = shape_.dtype == "fp64";
    const float one = 1, beta = shape_.accumulate ? 1.0f : 0.0f;
    const double one64 = 1, beta64 = beta;
    ok(blas().matmul(blas().handle, operation_, wide ? static_cast<const void*>(&one64) : &one, b, b_, a, a_, wide ? static_cast<const void*>(&beta64) : &beta, c,
                     c_, c, c_, &choice_.algo, blas().workspace.data(), kWorkspace, stream),
       "the product");
  }

  std::string note() const override {
    const auto read = [&](cublasLtMatmulAlgoConfigAttributes_t attribute) {
      std::uint32_t value = 0;
      size_t written = 0;
      return blas().algorithm_get(&choice_.algo, attribute, &value, sizeof value, &written) == CUBLAS_STATUS_SUCCESS ? std::to_string(value) : std::string("?");
    };
    return "cuBLASLt algorithm " + read(CUBLASLT_ALGO_CONFIG_ID) + " tile " + read(CUBLASLT_ALGO_CONFIG_TILE_ID) + " stages " + read(CUBLASLT_ALGO_CONFIG_STAGES_ID) +
           " split-k " + read(CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  }

 private:
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    ok(blas().operation_set(operation_, attribute, &value, sizeof value), "an attribute of the product");
  }
  void layout(cublasLtMatrixLayout_t& out, const std::string& dtype, std::int64_t rows, std::int64_t columns) {
    ok(blas().layout_create(&out, cuda_type(dtype), static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), rows), "a layout");
    if (shape_.batch == 1) return;
    const auto batch = static_cast<std::int32_t>(shape_.batch);
    const std::int64_t stride = rows * columns;
    ok(blas().layout_set(out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch), "a batch");
    ok(blas().layout_set(out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride), "a stride");
  }

  GemmShape shape_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_{};
};

}  // namespace

std::size_t GemmShape::a_bytes() const { return static_cast<std::size_t>(batch * m * k) * bytes_of(dtype); }
std::size_t GemmShape::b_bytes() const { return static_cast<std::size_t>(batch * k * n) * bytes_of(dtype); }
std::size_t GemmShape::c_bytes() const { return static_cast<std::size_t>(batch * m * n) * bytes_of(output_of(*this)); }

std::unique_ptr<Gemm> prepare_gemm(const GemmShape& shape) { return std::make_unique<LtGemm>(shape); }

std::string cublaslt_version() {
  try {
    const std::size_t v = blas().version();  // 130002 = 13.0.2; before 12: 4 digits of minor and patch alike
    return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
  } catch (const NotPossible&) {
    return {};
  }
}

}  // namespace rehearse::calibrate
