// The CUDA runtime as PyTorch calls it, over a GPU on paper: allocations are addresses, kernels are names, work is done at once.
// Symbols that are not here come from the real library. Source of the interface: the headers of CUDA 13.0 (cuda_runtime_api.h,
// crt/host_runtime.h).
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "calibrate/paper_gpu/memory.h"
#include "calibrate/paper_gpu/record.h"

namespace rehearse::paper_gpu {
void* driver_entry_point(const char* symbol);  // driver.cpp

namespace {

/// What PyTorch asks of a card, from CUDA's table of compute capabilities and the cards' data sheets.
struct Card {
  const char* key;
  const char* name;
  int major, minor, sms;
  std::size_t shared_per_sm, shared_per_block;
  int l2;
};
constexpr Card kCards[] = {
    {"a100", "NVIDIA A100-SXM4-80GB", 8, 0, 108, 164 << 10, 163 << 10, 40 << 20},
    {"h100", "NVIDIA H100 80GB HBM3", 9, 0, 132, 228 << 10, 227 << 10, 50 << 20},
    {"h200", "NVIDIA H200", 9, 0, 132, 228 << 10, 227 << 10, 50 << 20},
    {"b200", "NVIDIA B200", 10, 0, 148, 228 << 10, 227 << 10, 126 << 20},
};
const Card& card() {
  static const Card& chosen = []() -> const Card& {
    const char* key = std::getenv("PAPER_GPU_CARD");
    if (key == nullptr) return kCards[0];
    for (const Card& c : kCards)
      if (std::strcmp(c.key, key) == 0) return c;
    std::fprintf(stderr, "paper GPU: PAPER_GPU_CARD=%s is none of a100, h100, h200, b200\n", key);
    std::exit(2);
  }();
  return chosen;
}

std::unordered_map<const void*, std::string>& kernels() {
  static auto& names = *new std::unordered_map<const void*, std::string>;
  return names;
}

struct Stream {
  int priority;
};
struct Event {
  std::chrono::steady_clock::time_point at;
};
struct Configuration {
  dim3 grid, block;
  std::size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;
thread_local int current_device = 0;

cudaError_t launch(const void* function, dim3 grid, dim3 block, cudaStream_t stream) {
  record(Call::kernel, stream, "%s\t%u,%u,%u\t%u,%u,%u", kernel_name(function).data(), grid.x, grid.y, grid.z, block.x, block.y, block.z);
  return cudaSuccess;
}
const char* direction(cudaMemcpyKind kind) {
  constexpr const char* kDirections[] = {"host-host", "host-device", "device-host", "device-device", "default"};
  return kDirections[kind < 5 ? kind : 4];
}

}  // namespace

std::string_view kernel_name(const void* function) {
  const auto found = kernels().find(function);
  return found == kernels().end() ? std::string_view("?") : std::string_view(found->second);
}

}  // namespace rehearse::paper_gpu

using namespace rehearse::paper_gpu;

extern "C" {

// --- what the compiler writes into every library with kernels
void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) { kernels()[host] = name; }
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const Configuration& c = configurations.back();
  *grid = c.grid, *block = c.block, *shared = c.shared, *static_cast<cudaStream_t*>(stream) = c.stream;
  configurations.pop_back();
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) { return *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function)), cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t, cudaStream_t stream) { return launch(kernel, grid, block, stream); }

// --- launches
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void**, size_t, cudaStream_t stream) { return launch(function, grid, block, stream); }
cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void**, size_t, cudaStream_t stream) { return launch(function, grid, block, stream); }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void**) { return launch(function, config->gridDim, config->blockDim, config->stream); }
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) { return function(data), cudaSuccess; }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) { return function(stream, cudaSuccess, data), cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024, attributes->numRegs = 64;
  attributes->ptxVersion = attributes->binaryVersion = 10 * card().major + card().minor;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(card().shared_per_block);
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int threads, size_t, unsigned) { return *blocks = threads > 0 ? 2048 / threads : 1, cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads, size_t shared) { return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0); }
cudaError_t cudaGetSymbolAddress(void** address, const void*) {
  static void* const somewhere = take(1, Place::device);
  return *address = somewhere, cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }

// --- the device
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = current_device, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return current_device = device, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return record(Call::host_wait, nullptr, "device"), cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 1, cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int) { return std::snprintf(id, length, "0000:1b:00.0"), cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  const Card& c = card();
  *p = {};
  std::snprintf(p->name, sizeof p->name, "%s", c.name);
  p->totalGlobalMem = device_total();
  p->major = c.major, p->minor = c.minor, p->multiProcessorCount = c.sms;
  p->sharedMemPerBlock = 48 << 10, p->sharedMemPerBlockOptin = c.shared_per_block, p->sharedMemPerMultiprocessor = c.shared_per_sm;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536, p->warpSize = 32, p->maxThreadsPerBlock = 1024, p->maxThreadsPerMultiProcessor = 2048;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->maxBlocksPerMultiProcessor = 32, p->l2CacheSize = c.l2, p->memPitch = 2147483647, p->totalConstMem = 64 << 10;
  p->textureAlignment = 512, p->concurrentKernels = p->unifiedAddressing = p->canMapHostMemory = p->streamPrioritiesSupported = 1;
  p->asyncEngineCount = 3, p->cooperativeLaunch = p->hostRegisterSupported = p->managedMemory = 1, p->memoryBusWidth = 5120;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  cudaGetDeviceProperties(&p, device);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(p.sharedMemPerBlockOptin); break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(p.sharedMemPerBlock); break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = static_cast<int>(p.sharedMemPerMultiprocessor); break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: *value = p.maxGridSize[1]; break;
    case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[2]; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrCooperativeLaunch: case cudaDevAttrUnifiedAddressing: case cudaDevAttrHostRegisterSupported: *value = 1; break;
    default: *value = 0;
  }
  return cudaSuccess;
}

// --- memory
cudaError_t cudaMalloc(void** address, size_t bytes) {
  record(Call::allocation, nullptr, "%zu", bytes);
  return (*address = take(bytes, Place::device)) == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* address) {
  if (address == nullptr) return cudaSuccess;
  record(Call::release, nullptr, "%p", address);
  return give_back(address) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) { return (*address = take(bytes, Place::host)) == nullptr ? cudaErrorMemoryAllocation : cudaSuccess; }
cudaError_t cudaMallocHost(void** address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
cudaError_t cudaFreeHost(void* address) { return address == nullptr || give_back(address) ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) { return *total = device_total(), *free_bytes = *total - device_used(), cudaSuccess; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  *attributes = {};
  const Place place = place_of(address);
  attributes->type = place == Place::device ? cudaMemoryTypeDevice : place == Place::host ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  attributes->devicePointer = attributes->hostPointer = const_cast<void*>(address);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  record(Call::copy, stream, "%s\t%zu", direction(kind), bytes);
  return carry(to, from, bytes), cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  record(Call::host_wait, nullptr, "cudaMemcpy");
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) { return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream); }
cudaError_t cudaMemcpy2DAsync(void*, size_t, const void*, size_t, size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return record(Call::copy, stream, "%s\t%zu", direction(kind), width * height), cudaSuccess;
}
cudaError_t cudaMemsetAsync(void*, int, size_t bytes, cudaStream_t stream) { return record(Call::fill, stream, "%zu", bytes), cudaSuccess; }
cudaError_t cudaMemset(void* address, int value, size_t bytes) { return cudaMemsetAsync(address, value, bytes, nullptr); }

// --- streams and events: all work is done when it is issued
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) { return *stream = reinterpret_cast<cudaStream_t>(new Stream{priority}), cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) { return *priority = stream == nullptr ? 0 : reinterpret_cast<Stream*>(stream)->priority, cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return record(Call::host_wait, stream, "stream"), cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) { return record(Call::stream_wait, stream, "%p", static_cast<void*>(event)), cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) { return *status = cudaStreamCaptureStatusNone, cudaSuccess; }
static cudaError_t never_captures(cudaStreamCaptureStatus* status, unsigned long long* id) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = 0;
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  return never_captures(status, id);
}
#else
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**, size_t*) { return never_captures(status, id); }
#endif
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return *event = reinterpret_cast<cudaEvent_t>(new Event{}), cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete reinterpret_cast<Event*>(event), cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  record(Call::event, stream, "%p", static_cast<void*>(event));
  return reinterpret_cast<Event*>(event)->at = std::chrono::steady_clock::now(), cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return record(Call::host_wait, nullptr, "event %p", static_cast<void*>(event)), cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = std::chrono::duration<float, std::milli>(reinterpret_cast<Event*>(to)->at - reinterpret_cast<Event*>(from)->at).count();
  return cudaSuccess;
}

// --- errors
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  *function = driver_entry_point(symbol);
  if (result != nullptr) *result = *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
#endif
}
