// cuBLAS, cuBLASLt and NCCL as PyTorch calls them, over a GPU on paper: products and collectives are recorded with their shapes.
// Symbols that are not here come from the real libraries. Source of the interfaces: cublas_api.h and cublasLt.h of CUDA 13.0, nccl.h 2.28.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <nccl.h>

#include <cstring>

#include "calibrate/paper_gpu/record.h"

using rehearse::paper_gpu::Call;
using rehearse::paper_gpu::record;

namespace {

struct Handle {
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointers = CUBLAS_POINTER_MODE_HOST;
};
Handle& of(cublasHandle_t handle) { return *reinterpret_cast<Handle*>(handle); }

cublasStatus_t product(cublasHandle_t handle, cublasOperation_t a, cublasOperation_t b, long long m, long long n, long long k, int type, long long batch) {
  record(Call::product, of(handle).stream, "cublas\t%lld,%lld,%lld\t%lld\t%c%c\t%d", m, n, k, batch, "nt"[a != CUBLAS_OP_N], "nt"[b != CUBLAS_OP_N], type);
  return CUBLAS_STATUS_SUCCESS;
}

struct Layout {
  cudaDataType type;
  std::uint64_t rows, columns;
  std::int32_t batch;
};
struct Product {
  std::int32_t a_transposed = 0, b_transposed = 0, epilogue = 0;
};

struct Communicator {
  int ranks, rank, device;
};
Communicator& of(ncclComm_t comm) { return *reinterpret_cast<Communicator*>(comm); }
ncclResult_t collective(const char* kind, std::size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  record(Call::collective, stream, "%s\t%zu\t%d\t%d ranks", kind, count, static_cast<int>(type), of(comm).ranks);
  return ncclSuccess;
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) { return *handle = reinterpret_cast<cublasHandle_t>(new Handle), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) { return delete &of(handle), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) { return of(handle).stream = stream, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) { return *stream = of(handle).stream, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, size_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) { return of(handle).math = mode, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) { return *mode = of(handle).math, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) { return of(handle).pointers = mode, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) { return *mode = of(handle).pointers, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetSmCountTarget(cublasHandle_t, int) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void*, const void*, cudaDataType type, int, const void*, cudaDataType,
                            int, const void*, void*, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t) {
  return product(handle, ta, tb, m, n, k, type, 1);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void*, const void*, cudaDataType type, int, long long,
                                          const void*, cudaDataType, int, long long, const void*, void*, cudaDataType, int, long long, int batch, cublasComputeType_t, cublasGemmAlgo_t) {
  return product(handle, ta, tb, m, n, k, type, batch);
}
cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const float*, const float*, int, const float*, int, const float*, float*,
                              int) {
  return product(handle, ta, tb, m, n, k, CUDA_R_32F, 1);
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const float*, const float*, int, long long, const float*, int,
                                         long long, const float*, float*, int, long long, int batch) {
  return product(handle, ta, tb, m, n, k, CUDA_R_32F, batch);
}
cublasStatus_t cublasSgemv_v2(cublasHandle_t handle, cublasOperation_t ta, int m, int n, const float*, const float*, int, const float*, int, const float*, float*, int) {
  return product(handle, ta, CUBLAS_OP_N, m, 1, n, CUDA_R_32F, 1);
}

size_t cublasLtGetVersion() { return 130100; }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t, cudaDataType_t) { return *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Product), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return delete reinterpret_cast<Product*>(desc), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void* value, size_t) {
  auto& product = *reinterpret_cast<Product*>(desc);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) std::memcpy(&product.a_transposed, value, sizeof product.a_transposed);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) std::memcpy(&product.b_transposed, value, sizeof product.b_transposed);
  if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE) std::memcpy(&product.epilogue, value, sizeof product.epilogue);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows, std::uint64_t columns, std::int64_t) {
  return *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, 1}), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return delete reinterpret_cast<Layout*>(layout), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const void* value, size_t) {
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) std::memcpy(&reinterpret_cast<Layout*>(layout)->batch, value, sizeof(std::int32_t));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) { return *preference = new cublasLtMatmulPreferenceOpaque_t, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return delete preference, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void*, size_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t results[], int* found) {
  results[0] = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  return *found = 1, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void*, const void*, cublasLtMatrixLayout_t a, const void*, cublasLtMatrixLayout_t, const void*, const void*,
                              cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t stream) {
  const auto& product = *reinterpret_cast<Product*>(desc);
  const auto &left = *reinterpret_cast<Layout*>(a), &out = *reinterpret_cast<Layout*>(d);
  record(Call::product, stream, "cublasLt\t%llu,%llu,%llu\t%d\t%c%c\t%d\tepilogue %d", static_cast<unsigned long long>(out.rows), static_cast<unsigned long long>(out.columns),
         static_cast<unsigned long long>(product.a_transposed ? left.rows : left.columns), out.batch, "nt"[product.a_transposed != 0], "nt"[product.b_transposed != 0],
         static_cast<int>(left.type), product.epilogue);
  return CUBLAS_STATUS_SUCCESS;
}

ncclResult_t ncclGetVersion(int* version) { return *version = 22907, ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t) { return "an error of the GPU on paper"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return std::memset(id, 0, sizeof *id), ncclSuccess; }
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId, int rank, ncclConfig_t*) { return *comm = reinterpret_cast<ncclComm_t>(new Communicator{ranks, rank, 0}), ncclSuccess; }
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) { return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr); }
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int, ncclUniqueId* id, ncclConfig_t* config) { return ncclCommInitRankConfig(comm, ranks, *id, rank, config); }
ncclResult_t ncclCommSplit(ncclComm_t comm, int, int, ncclComm_t* part, ncclConfig_t*) { return *part = reinterpret_cast<ncclComm_t>(new Communicator(of(comm))), ncclSuccess; }
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) { return *error = ncclSuccess, ncclSuccess; }
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) { return *count = of(comm).ranks, ncclSuccess; }
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) { return *rank = of(comm).rank, ncclSuccess; }
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) { return *device = of(comm).device, ncclSuccess; }
ncclResult_t ncclCommRegister(const ncclComm_t, void*, size_t, void** handle) { return *handle = nullptr, ncclSuccess; }
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t) { return *op = ncclSum, ncclSuccess; }
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclAllReduce(const void*, void*, size_t count, ncclDataType_t type, ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) { return collective("all-reduce", count, type, comm, stream); }
ncclResult_t ncclAllGather(const void*, void*, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) { return collective("all-gather", count, type, comm, stream); }
ncclResult_t ncclReduceScatter(const void*, void*, size_t count, ncclDataType_t type, ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) { return collective("reduce-scatter", count, type, comm, stream); }
ncclResult_t ncclBroadcast(const void*, void*, size_t count, ncclDataType_t type, int, ncclComm_t comm, cudaStream_t stream) { return collective("broadcast", count, type, comm, stream); }
ncclResult_t ncclBcast(void*, size_t count, ncclDataType_t type, int, ncclComm_t comm, cudaStream_t stream) { return collective("broadcast", count, type, comm, stream); }
ncclResult_t ncclReduce(const void*, void*, size_t count, ncclDataType_t type, ncclRedOp_t, int, ncclComm_t comm, cudaStream_t stream) { return collective("reduce", count, type, comm, stream); }
ncclResult_t ncclSend(const void*, size_t count, ncclDataType_t type, int, ncclComm_t comm, cudaStream_t stream) { return collective("send", count, type, comm, stream); }
ncclResult_t ncclRecv(void*, size_t count, ncclDataType_t type, int, ncclComm_t comm, cudaStream_t stream) { return collective("receive", count, type, comm, stream); }
}
