// The CUDA runtime, as far as the probe calls it. Source of what is refused: CUDA Runtime API, Programming Guide (limits of
// compute capability 9.0, stream capture).
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "world.h"

namespace rehearse::paper {
namespace {

struct Stream {
  double busy_until = 0;
  const volatile int* held_by = nullptr;  // the flag that a kernel waits for
  int queued = 0;                         // launches behind it
  bool capturing = false;
  int captured = 0;
};
struct Event {
  double at = -1;
};
struct Graph {
  int nodes = 0;
};

constexpr std::uintptr_t kFirst = std::uintptr_t{1} << 60;  // no address of the host lies there

struct World {
  int gpus = [] { const char* n = std::getenv("PAPER_GPUS"); return n == nullptr ? 1 : std::atoi(n); }();
  std::size_t total = [] { const char* n = std::getenv("PAPER_GIB"); return static_cast<std::size_t>(n == nullptr ? 139 : std::atoi(n)) << 30; }(), used = std::size_t{1} << 29;
  int device = 0;
  std::map<std::uintptr_t, std::size_t> memory;
  std::uintptr_t next = kFirst;
  std::map<void*, std::size_t> pinned;
  std::set<Stream*> streams;
  std::set<Event*> events;
  Stream legacy;
  std::map<const void*, std::string> kernels;
  std::map<const void*, int> shared_limit;
  std::map<const void*, bool> loaded;
  cudaError_t last = cudaSuccess;
  struct Configuration { dim3 grid, block; std::size_t shared; void* stream; };
  std::vector<Configuration> configurations;
};
World& world() {
  static World w;
  return w;
}
double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

Stream& stream_of(void* s, const char* call) {
  if (s == nullptr) return world().legacy;
  auto* stream = static_cast<Stream*>(s);
  if (!world().streams.contains(stream)) refuse(std::string(call) + ": no such stream");
  return *stream;
}
Event& event_of(cudaEvent_t e, const char* call) {
  auto* event = reinterpret_cast<Event*>(e);
  if (!world().events.contains(event)) refuse(std::string(call) + ": no such event");
  return *event;
}
void wait_for(Stream& s, const char* call) {
  if (s.capturing) refuse(std::string(call) + ": the stream is being captured (cudaErrorStreamCaptureUnsupported)");
  if (s.held_by != nullptr && *s.held_by == 0) refuse(std::string(call) + ": the host waits for a stream that it holds up itself");
  s.held_by = nullptr, s.queued = 0;
}
void wait_for_all(const char* call) {
  wait_for(world().legacy, call);
  for (Stream* s : world().streams) wait_for(*s, call);
}
void not_while_capturing(const char* call) {
  for (const Stream* s : world().streams)
    if (s->capturing) refuse(std::string(call) + ": not allowed while a stream is captured");
}
cudaError_t failed(cudaError_t e) { return world().last = e; }

bool is_host(const void* at) { return reinterpret_cast<std::uintptr_t>(at) < kFirst; }
void check_range(const void* at, std::size_t bytes, bool device, const char* call) {
  if (device ? !paper_is_device_memory(at, bytes) : !is_host(at)) refuse(std::string(call) + ": " + std::to_string(bytes) + " bytes that are not there");
  if (device) return;
  for (const auto& [begin, size] : world().pinned) {
    const auto offset = static_cast<const char*>(at) - static_cast<const char*>(begin);
    if (offset >= 0 && static_cast<std::size_t>(offset) < size && static_cast<std::size_t>(offset) + bytes > size) refuse(std::string(call) + ": beyond the end of pinned memory");
  }
}

}  // namespace

void refuse(const std::string& what) {
  std::fprintf(stderr, "GPU on paper: refused: %s\n", what.c_str());
  std::_Exit(70);
}

extern "C" {

bool paper_is_device_memory(const void* at, std::size_t bytes) {
  const auto a = reinterpret_cast<std::uintptr_t>(at);
  auto i = world().memory.upper_bound(a);
  if (i == world().memory.begin()) return false;
  --i;
  return a + bytes <= i->first + i->second && a < i->first + i->second;
}

void paper_runs(void* s, double seconds, const char* what) {
  Stream& stream = stream_of(s, what);
  if (stream.capturing) ++stream.captured;
  if (stream.held_by != nullptr && ++stream.queued > 1000) refuse(std::string(what) + ": the launch queue is full while the host holds the stream up");
  stream.busy_until = std::max(stream.busy_until, now()) + seconds;
}

void** __cudaRegisterFatBinary(void*) { static void* handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) { world().kernels[host] = name; }
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  if (!world().kernels.contains(host)) refuse("a kernel that was not registered");
  return *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host)), cudaSuccess;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) { return world().configurations.push_back({grid, block, shared, stream}), 0; }
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const auto c = world().configurations.back();
  world().configurations.pop_back();
  *grid = c.grid, *block = c.block, *shared = c.shared, *static_cast<void**>(stream) = c.stream;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t s) {
  const void* host = reinterpret_cast<const void*>(kernel);
  const std::string name = world().kernels[host];
  Stream& stream = stream_of(s, name.c_str());
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7FFFFFFFu || grid.y > 65535 || grid.z > 65535 || block.x * block.y * block.z > 1024 || block.x == 0)
    refuse(name + ": grid " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + ", block " + std::to_string(block.x));
  const int limit = world().shared_limit.contains(host) ? world().shared_limit[host] : 48 * 1024;
  if (shared > static_cast<std::size_t>(limit)) refuse(name + ": " + std::to_string(shared) + " bytes of shared memory");
  if (!world().loaded[host]) {  // loading code may wait for everything that runs, and cannot be captured
    world().loaded[host] = true;
    if (stream.capturing) refuse(name + ": its code is loaded inside a capture");
    for (const Stream* other : world().streams)
      if (other->held_by != nullptr && *other->held_by == 0) refuse(name + ": its code is loaded while a stream is held up");
  }
  const auto pointer = [&](int i) { return *static_cast<char**>(arguments[i]); };
  const auto must_hold = [&](const void* at, std::size_t bytes) {
    if (!paper_is_device_memory(at, bytes)) refuse(name + ": " + std::to_string(bytes) + " bytes that are not there");
  };
  const auto is = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (is("block_kernel")) {
    const auto* go = *static_cast<const volatile int**>(arguments[0]);
    if (*go == 0) stream.held_by = go, stream.queued = 0;
    return cudaSuccess;
  }
  // Operands of the memory kernels: elements are named in the last argument; 2 bytes each unless the name says float.
  const std::size_t e = is("IfE") || is("If") ? 4 : is("Id") ? 8 : is("fp8") ? 1 : 2;
  const auto number = [&](int i) { return static_cast<std::size_t>(*static_cast<std::int64_t*>(arguments[i])); };
  const auto width = [&](int i) { return static_cast<std::size_t>(*static_cast<int*>(arguments[i])); };
  if (is("fill_kernel")) must_hold(pointer(0), e * number(1));
  if (is("copy_kernel")) must_hold(pointer(0), e * number(2)), must_hold(pointer(1), e * number(2));
  if (is("add_kernel")) for (int i = 0; i < 3; ++i) must_hold(pointer(i), e * number(3));
  if (is("cast_kernel")) must_hold(pointer(0), 4 * number(2)), must_hold(pointer(1), e * number(2));
  if (is("row_kernel")) must_hold(pointer(0), e * width(2) * grid.x), must_hold(pointer(1), e * width(2) * grid.x);
  if (is("cross_entropy")) must_hold(pointer(0), e * width(2) * grid.x), must_hold(pointer(1), 4 * std::size_t{grid.x});
  if (is("adam_kernel")) {
    for (int i = 0; i < 3; ++i) must_hold(pointer(i), 4 * number(5));
    for (int i = 3; i < 5; ++i) must_hold(pointer(i), e * number(5));
  }
  if (is("squares_kernel")) must_hold(pointer(0), e * number(2)), must_hold(pointer(1), 4);
  for (int i = 0; (is("copy_kernel") || is("add_kernel") || is("row_kernel")) && i < 2; ++i)
    if (reinterpret_cast<std::uintptr_t>(pointer(i)) % 16 != 0) refuse(name + ": not aligned to 16 bytes");
  paper_runs(s, 2e-6, name.c_str());
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* n) { return *n = world().gpus, *n > 0 ? cudaSuccess : cudaErrorNoDevice; }
cudaError_t cudaSetDevice(int d) { return d < world().gpus ? (world().device = d, cudaSuccess) : failed(cudaErrorInvalidDevice); }
cudaError_t cudaGetDevice(int* d) { return *d = world().device, cudaSuccess; }
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int d) { return std::snprintf(text, static_cast<std::size_t>(size), "0000:%02x:00.0", 0x1b + d), cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr a, int) {
  if (a == cudaDevAttrL2CacheSize) *value = 60 << 20;
  else if (a == cudaDevAttrMultiProcessorCount) *value = 132;
  else refuse("an attribute that nobody made up");
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  std::strcpy(p->name, "NVIDIA H200");
  p->major = 9, p->multiProcessorCount = 132, p->l2CacheSize = 60 << 20, p->memoryBusWidth = 6144;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int a, int b) { return *can = a != b, cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int d, unsigned) {
  if (d == world().device) refuse("peer access to itself");
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* v) { return *v = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* v) { return *v = 13000, cudaSuccess; }
const char* cudaGetErrorString(cudaError_t e) { return e == cudaErrorMemoryAllocation ? "out of memory" : e == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "an error on paper"; }
cudaError_t cudaGetLastError() { return std::exchange(world().last, cudaSuccess); }

cudaError_t cudaMalloc(void** at, size_t bytes) {
  not_while_capturing("cudaMalloc");
  if (bytes == 0) return *at = nullptr, cudaSuccess;
  if (world().used + bytes > world().total) return failed(cudaErrorMemoryAllocation);
  *at = reinterpret_cast<void*>(world().next);
  world().memory[world().next] = bytes, world().used += bytes;
  world().next += (bytes / (2u << 20) + 2) * (2u << 20);  // a gap between any two
  return cudaSuccess;
}
cudaError_t cudaFree(void* at) {
  if (at == nullptr) return cudaSuccess;
  wait_for_all("cudaFree");
  const auto i = world().memory.find(reinterpret_cast<std::uintptr_t>(at));
  if (i == world().memory.end()) refuse("cudaFree: no such memory");
  world().used -= i->second;
  world().memory.erase(i);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) { return *free = world().total - world().used, *total = world().total, cudaSuccess; }
cudaError_t cudaHostAlloc(void** at, size_t bytes, unsigned) {
  *at = std::malloc(bytes);
  if (*at == nullptr) return failed(cudaErrorMemoryAllocation);
  world().pinned[*at] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* at) {
  for (const Stream* s : world().streams)
    if (s->held_by == at && *s->held_by == 0) refuse("cudaFreeHost: a kernel still looks at it");
  if (world().pinned.erase(at) == 0) refuse("cudaFreeHost: no such memory");
  std::free(at);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) { return *device = host, cudaSuccess; }

cudaError_t cudaMemset(void* at, int, size_t bytes) { return check_range(at, bytes, true, "cudaMemset"), cudaSuccess; }
cudaError_t cudaMemsetAsync(void* at, int, size_t bytes, cudaStream_t s) { return check_range(at, bytes, true, "cudaMemsetAsync"), paper_runs(s, 2e-6, "memset"), cudaSuccess; }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s) {
  check_range(to, bytes, kind != cudaMemcpyDeviceToHost, "cudaMemcpyAsync to");
  check_range(from, bytes, kind != cudaMemcpyHostToDevice, "cudaMemcpyAsync from");
  return paper_runs(s, 1e-6 + static_cast<double>(bytes) / 50e9, "copy"), cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  wait_for_all("cudaMemcpy");
  if (kind == cudaMemcpyDeviceToHost) std::memset(to, 0, bytes);
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t s) {
  return check_range(to, bytes, true, "peer copy to"), check_range(from, bytes, true, "peer copy from"), paper_runs(s, 1e-6, "peer copy"), cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) { return *s = reinterpret_cast<cudaStream_t>(*world().streams.insert(new Stream).first), cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  Stream* stream = &stream_of(s, "cudaStreamDestroy");
  world().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) { return wait_for(stream_of(s, "cudaStreamSynchronize"), "cudaStreamSynchronize"), cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  Stream& stream = stream_of(s, "cudaStreamWaitEvent");
  stream.busy_until = std::max(stream.busy_until, event_of(e, "cudaStreamWaitEvent").at);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return wait_for_all("cudaDeviceSynchronize"), cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* e) { return *e = reinterpret_cast<cudaEvent_t>(*world().events.insert(new Event).first), cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  Event* event = &event_of(e, "cudaEventDestroy");
  world().events.erase(event);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  Stream& stream = stream_of(s, "cudaEventRecord");
  event_of(e, "cudaEventRecord").at = std::max(stream.busy_until, now());
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  event_of(e, "cudaEventSynchronize");
  return wait_for_all("cudaEventSynchronize"), cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
  if (event_of(a, "elapsed").at < 0 || event_of(b, "elapsed").at < 0) refuse("cudaEventElapsedTime: of an event that was not recorded");
  return *ms = static_cast<float>(1e3 * (event_of(b, "elapsed").at - event_of(a, "elapsed").at)), cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  if (s == nullptr) refuse("the legacy stream cannot be captured");
  return stream_of(s, "capture").capturing = true, stream_of(s, "capture").captured = 0, cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* g) {
  Stream& stream = stream_of(s, "end of capture");
  if (!stream.capturing) refuse("cudaStreamEndCapture: the stream is not being captured");
  stream.capturing = false;
  return *g = reinterpret_cast<cudaGraph_t>(new Graph{stream.captured}), cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* e, cudaGraph_t g, unsigned long long) { return *e = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(g))), cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t g) { return delete reinterpret_cast<Graph*>(g), cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g) { return delete reinterpret_cast<Graph*>(g), cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s) { return paper_runs(s, 1e-6 * reinterpret_cast<Graph*>(g)->nodes, "graph"), cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void* host, cudaFuncAttribute a, int value) {
  if (a != cudaFuncAttributeMaxDynamicSharedMemorySize || value > 227 * 1024) refuse("cudaFuncSetAttribute: " + std::to_string(value));
  return world().shared_limit[host] = value, cudaSuccess;
}

}  // extern "C"
}  // namespace rehearse::paper
