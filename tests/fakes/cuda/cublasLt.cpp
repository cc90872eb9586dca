// cuBLASLt, as far as the probe calls it. Source of what is refused: cuBLAS Library, cublasLtMatmul(): the tables of types, and
// for fp8: A transposed and B not, dimensions that are multiples of 16, pointers aligned to 16 bytes.
#include <cublasLt.h>

#include <cstring>
#include <string>

#include "world.h"

namespace rehearse::paper {
namespace {

struct Layout {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t leading, stride = 0;
  std::int32_t batch = 1;
  std::size_t element() const { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : type == CUDA_R_8F_E4M3 ? 1 : 2; }
  std::size_t bytes() const {
    const std::size_t one = static_cast<std::size_t>(leading) * (columns - 1) + rows;
    return (static_cast<std::size_t>(batch - 1) * static_cast<std::size_t>(stride) + one) * element();
  }
};
struct Operation {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  bool fast = false;
};
const Layout& of(cublasLtMatrixLayout_t l) { return *reinterpret_cast<const Layout*>(l); }

cublasStatus_t judge(const Operation& o, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const auto rows = [](const Layout& l, cublasOperation_t op) { return op == CUBLAS_OP_N ? l.rows : l.columns; };
  const auto columns = [](const Layout& l, cublasOperation_t op) { return op == CUBLAS_OP_N ? l.columns : l.rows; };
  const std::uint64_t m = rows(a, o.a), n = columns(b, o.b), k = columns(a, o.a);
  if (rows(b, o.b) != k || c.rows != m || c.columns != n || d.rows != m || d.columns != n) refuse("cublasLtMatmul: sizes that do not fit each other");
  for (const Layout* l : {&a, &b, &c, &d})
    if (l->leading < static_cast<std::int64_t>(l->rows) || l->batch != a.batch || (l->batch > 1 && l->stride < l->leading * static_cast<std::int64_t>(l->columns))) refuse("cublasLtMatmul: a layout");
  if (a.type != b.type || c.type != d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
  switch (a.type) {
    case CUDA_R_8F_E4M3:
      if (o.a != CUBLAS_OP_T || o.b != CUBLAS_OP_N || m % 16 != 0 || n % 16 != 0 || k % 16 != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
      return o.compute == CUBLAS_COMPUTE_32F && o.scale == CUDA_R_32F && (c.type == CUDA_R_16BF || c.type == CUDA_R_32F || c.type == CUDA_R_16F) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    case CUDA_R_16BF:
    case CUDA_R_16F:
      return o.compute == CUBLAS_COMPUTE_32F && o.scale == CUDA_R_32F && (c.type == a.type || c.type == CUDA_R_32F) && !o.fast ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    case CUDA_R_32F:
      return (o.compute == CUBLAS_COMPUTE_32F || o.compute == CUBLAS_COMPUTE_32F_FAST_TF32) && o.scale == CUDA_R_32F && c.type == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    case CUDA_R_64F: return o.compute == CUBLAS_COMPUTE_64F && o.scale == CUDA_R_64F && c.type == CUDA_R_64F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

}  // namespace

extern "C" {
cublasStatus_t cublasLtCreate(cublasLtHandle_t* h) { static int handle; return *h = reinterpret_cast<cublasLtHandle_t>(&handle), CUBLAS_STATUS_SUCCESS; }
size_t cublasLtGetVersion() { return 130002; }
#undef cublasLtMatmulDescCreate
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* o, cublasComputeType_t c, cudaDataType_t s) { return *o = reinterpret_cast<cublasLtMatmulDesc_t>(new Operation{c, s}), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t o) { return delete reinterpret_cast<Operation*>(o), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void* value, size_t bytes) {
  auto& o = *reinterpret_cast<Operation*>(d);
  if (bytes != (a == CUBLASLT_MATMUL_DESC_FAST_ACCUM ? 1u : 4u)) return CUBLAS_STATUS_INVALID_VALUE;
  if (a == CUBLASLT_MATMUL_DESC_TRANSA) std::memcpy(&o.a, value, bytes);
  else if (a == CUBLASLT_MATMUL_DESC_TRANSB) std::memcpy(&o.b, value, bytes);
  else if (a == CUBLASLT_MATMUL_DESC_FAST_ACCUM) o.fast = *static_cast<const std::int8_t*>(value) != 0;
  else return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType type, uint64_t rows, uint64_t columns, int64_t leading) {
  return *l = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, leading}), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return delete reinterpret_cast<Layout*>(l), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t a, const void* value, size_t bytes) {
  auto& layout = *reinterpret_cast<Layout*>(l);
  if (a == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == 4) return std::memcpy(&layout.batch, value, 4), CUBLAS_STATUS_SUCCESS;
  if (a == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && bytes == 8) return std::memcpy(&layout.stride, value, 8), CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) { return *p = reinterpret_cast<cublasLtMatmulPreference_t>(new std::size_t(0)), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return delete reinterpret_cast<std::size_t*>(p), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t a, const void*, size_t bytes) {
  return a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == 8 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t o, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t, int wanted, cublasLtMatmulHeuristicResult_t results[], int* found) {
  const cublasStatus_t s = judge(*reinterpret_cast<Operation*>(o), of(a), of(b), of(c), of(d));
  *found = s == CUBLAS_STATUS_SUCCESS && wanted > 0;
  if (*found) results[0] = {};
  return s;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t*, cublasLtMatmulAlgoConfigAttributes_t, void* out, size_t bytes, size_t* written) {
  return std::memset(out, 0, bytes), *written = bytes, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t o, const void*, const void* a, cublasLtMatrixLayout_t la, const void* b, cublasLtMatrixLayout_t lb, const void* beta, const void* c,
                              cublasLtMatrixLayout_t lc, void* d, cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t*, void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (const cublasStatus_t s = judge(*reinterpret_cast<Operation*>(o), of(la), of(lb), of(lc), of(ld)); s != CUBLAS_STATUS_SUCCESS) return s;
  const auto check = [&](const void* at, const Layout& l, const char* what) {
    if (!paper_is_device_memory(at, l.bytes())) refuse(std::string("cublasLtMatmul: ") + what + ": " + std::to_string(l.bytes()) + " bytes that are not there");
    if (reinterpret_cast<std::uintptr_t>(at) % 16 != 0) refuse(std::string("cublasLtMatmul: ") + what + " is not aligned to 16 bytes");
  };
  check(a, of(la), "A"), check(b, of(lb), "B"), check(d, of(ld), "D");
  if (*static_cast<const float*>(beta) != 0) check(c, of(lc), "C");
  if (!paper_is_device_memory(workspace, workspace_bytes)) refuse("cublasLtMatmul: its workspace");
  paper_runs(stream, 5e-6, "cublasLtMatmul"), paper_runs(stream, 0, "its reduction of split sums");
  return CUBLAS_STATUS_SUCCESS;
}
}
}  // namespace rehearse::paper
