// The CUDA driver, as far as PyTorch's expandable segments and Triton's launcher call it, over a GPU on paper. The library stands in
// for libcuda.so.1 too. Source of the interface: cuda.h of CUDA 13.0.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <mutex>
#include <string>
#include <unordered_map>

#include "calibrate/paper_gpu/memory.h"
#include "calibrate/paper_gpu/record.h"

namespace rehearse::paper_gpu {
namespace {

std::mutex changing;
std::unordered_map<CUmemGenericAllocationHandle, std::size_t> sizes;
int context;
CUcontext the_context() { return reinterpret_cast<CUcontext>(&context); }

struct Function {
  std::string name;
};
CUresult launch(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, CUstream stream) {
  record(Call::kernel, stream, "%s\t%u,%u,%u\t%u,%u,%u", reinterpret_cast<Function*>(function)->name.c_str(), gx, gy, gz, bx, by, bz);
  return CUDA_SUCCESS;
}
CUresult not_there() { return CUDA_ERROR_NOT_SUPPORTED; }

}  // namespace

/// Any symbol has an answer; those that are not below say "not supported".
void* driver_entry_point(const char* symbol) {
  Dl_info here;
  if (dladdr(reinterpret_cast<void*>(&not_there), &here) == 0) return nullptr;
  void* self = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  for (const std::string& name : {std::string(symbol) + "_v2", std::string(symbol)})
    if (void* function = self == nullptr ? nullptr : dlsym(self, name.c_str())) {
      Dl_info there;
      if (dladdr(function, &there) != 0 && there.dli_fbase == here.dli_fbase) return function;
    }
  return reinterpret_cast<void*>(&not_there);
}

}  // namespace rehearse::paper_gpu

using namespace rehearse::paper_gpu;

extern "C" {

// --- memory of expandable segments
CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  return *address = reinterpret_cast<CUdeviceptr>(at), CUDA_SUCCESS;
}
// Triton 2's own.
CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  record(Call::allocation, nullptr, "%zu", bytes);
  void* at = take(bytes, Place::device);
  return *address = reinterpret_cast<CUdeviceptr>(at), at == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr address) {
  record(Call::release, nullptr, "%p", reinterpret_cast<void*>(address));
  return give_back(reinterpret_cast<void*>(address)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  record(Call::copy, nullptr, "host-device\t%zu", bytes);
  return carry(reinterpret_cast<void*>(to), from, bytes), CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) { return munmap(reinterpret_cast<void*>(address), bytes), CUDA_SUCCESS; }
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp*, unsigned long long) {
  record(Call::allocation, nullptr, "%zu", bytes);
  if (!take_physical(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(changing);
  static CUmemGenericAllocationHandle next = 0;
  sizes[*handle = ++next] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(changing);
  const auto size = sizes.find(handle);
  if (size == sizes.end()) return CUDA_ERROR_INVALID_VALUE;
  record(Call::release, nullptr, "%zu", size->second);
  give_physical_back(size->second);
  sizes.erase(size);
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) { return CUDA_SUCCESS; }
CUresult cuMemUnmap(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) { return *bytes = size_t{2} << 20, CUDA_SUCCESS; }

// --- looked up by name by PyTorch until 2.7 (c10/cuda/driver_api.cpp), and called where memory is shared between processes only
CUresult cuMemExportToShareableHandle(void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle, CUdevice) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle, size_t, CUmemGenericAllocationHandle, size_t, size_t, unsigned long long) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuMulticastCreate(CUmemGenericAllocationHandle*, const CUmulticastObjectProp*) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, CUstream) { return CUDA_ERROR_NOT_SUPPORTED; }
#undef cuStreamWriteValue32  // the header calls it cuStreamWriteValue32_v2
CUresult cuStreamWriteValue32(CUstream, CUdeviceptr, cuuint32_t, unsigned) { return CUDA_ERROR_NOT_SUPPORTED; }

// --- the device
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char** text) { return *text = "an error of the GPU on paper", CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int* count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  // The runtime's enumeration is the driver's.
  return cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device), CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) { return *flags = 0, *active = 1, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice) { return *out = the_context(), CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* out) { return *out = the_context(), CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t* value, CUlimit) { return *value = 0, CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* device) { return *device = 0, CUDA_SUCCESS; }
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) *static_cast<CUdeviceptr*>(value) = address;
  return CUDA_SUCCESS;
}

// --- modules that are compiled while the program runs (Triton)
CUresult cuModuleLoadData(CUmodule* module, const void*) {
  static int one;
  return *module = reinterpret_cast<CUmodule>(&one), CUDA_SUCCESS;
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) { return cuModuleLoadData(module, image); }
CUresult cuModuleLoad(CUmodule* module, const char*) { return cuModuleLoadData(module, nullptr); }
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) { return *function = reinterpret_cast<CUfunction>(new Function{name}), CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  return *value = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 64 : attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0, CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int threads, size_t) { return *blocks = threads > 0 ? 2048 / threads : 1, CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) { return *clusters = 16, CUDA_SUCCESS; }
CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned, CUstream stream, void**, void**) {
  return launch(function, gx, gy, gz, bx, by, bz, stream);
}
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned, CUstream stream, void**) {
  return launch(function, gx, gy, gz, bx, by, bz, stream);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction function, void**, void**) {
  return launch(function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ, c->hStream);
}
CUresult cuLinkCreate(unsigned, CUjit_option*, void**, CUlinkState*) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuLinkAddData(CUlinkState, CUjitInputType, void*, size_t, const char*, unsigned, CUjit_option*, void**) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuLinkComplete(CUlinkState, void**, size_t*) { return CUDA_ERROR_NOT_SUPPORTED; }
}
