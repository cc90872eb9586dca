#include "calibrate/probe/cuda/works.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "calibrate/probe/cuda/attention.h"
#include "calibrate/probe/cuda/blas.h"
#include "calibrate/probe/cuda/kernels.h"

namespace rehearse::calibrate {
namespace {

using Int = std::int64_t;
using Moment = std::chrono::steady_clock;

Int whole(const Facts& facts, const char* key, Int fallback = 0) {
  const auto at = facts.find(std::string_view(key));
  return at == facts.end() ? fallback : std::get<Int>(at->second);
}
std::string text(const Facts& facts, const char* key, const char* fallback = "") {
  const auto at = facts.find(std::string_view(key));
  return at == facts.end() ? fallback : std::get<std::string>(at->second);
}
bool flag(const Facts& facts, const char* key, bool fallback = false) {
  const auto at = facts.find(std::string_view(key));
  return at == facts.end() ? fallback : std::get<bool>(at->second);
}

double since(Moment::time_point begin) { return std::chrono::duration<double>(Moment::now() - begin).count(); }

double between(cudaEvent_t begin, cudaEvent_t end) {
  float ms = 0;
  REHEARSE_CUDA(cudaEventElapsedTime(&ms, begin, end));
  return 1e-3 * static_cast<double>(ms);
}

std::size_t free_bytes() {
  std::size_t free = 0, total = 0;
  REHEARSE_CUDA(cudaMemGetInfo(&free, &total));
  return free;
}

/// How many sets of operands it takes that none is left in L2 when its turn comes again.
Int rotating_sets(std::size_t bytes) {
  int device = 0, l2 = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device);
  const std::size_t sets = 1 + 3 * static_cast<std::size_t>(l2) / std::max<std::size_t>(bytes, 1);
  const std::size_t room = std::max<std::size_t>(1, free_bytes() / 4 / std::max<std::size_t>(bytes, 1));
  return static_cast<Int>(std::clamp<std::size_t>(sets, 1, std::min<std::size_t>(room, 64)));
}

std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

class KernelWork final : public Work {
 public:
  KernelWork(Enqueue enqueue, std::string note) : enqueue_(std::move(enqueue)), note_(std::move(note)) {
    REHEARSE_CUDA(cudaHostAlloc(&go_, sizeof(int), cudaHostAllocMapped));
    REHEARSE_CUDA(cudaHostGetDevicePointer(reinterpret_cast<void**>(&device_go_), go_, 0));
  }
  ~KernelWork() override { cudaFreeHost(go_); }

  double run(std::int64_t count) override {
    volatile int* go = go_;
    *go = 0;
    // The first execution may load code, which waits for the stream: it must not be held up.
    if (!first_) block_stream(device_go_, 200'000'000, stream_);
    first_ = false;
    REHEARSE_CUDA(cudaEventRecord(begin_, stream_));
    for (std::int64_t i = 0; i < count; ++i) enqueue_(stream_, next_++);
    REHEARSE_CUDA(cudaEventRecord(end_, stream_));
    *go = 1;
    REHEARSE_CUDA(cudaEventSynchronize(end_));
    return between(begin_, end_);
  }
  std::int64_t most_repeats() const override { return 300; }  // the launch queue holds about 1000
  std::string note() const override { return note_; }

 private:
  Enqueue enqueue_;
  std::string note_;
  Stream stream_;
  Event begin_, end_;
  int* go_ = nullptr;
  int* device_go_ = nullptr;
  std::int64_t next_ = 0;
  bool first_ = true;
};

/// Time by the host's clock, from the first call until the host knows that the last has ended.
class HostClockWork final : public Work {
 public:
  /// `act(count)`: does it all; returns the part of the time that counts, or a negative number for all of it.
  HostClockWork(std::function<double(std::int64_t)> act, std::int64_t most) : act_(std::move(act)), most_(most) {}
  double run(std::int64_t count) override {
    const auto begin = Moment::now();
    const double part = act_(count);
    return part >= 0 ? part : since(begin);
  }
  std::int64_t most_repeats() const override { return most_; }

 private:
  std::function<double(std::int64_t)> act_;
  std::int64_t most_;
};

GemmShape gemm_shape(const Facts& p) {
  GemmShape s{whole(p, "m"), whole(p, "n"), whole(p, "k"), whole(p, "batch", 1), text(p, "dtype", "bf16"), text(p, "output_dtype"), text(p, "role", "forward"), flag(p, "accumulate")};
  if (s.dtype == "fp8" && s.output_dtype.empty()) s.output_dtype = "bf16";
  return s;
}

/// Operands of one shape, several sets, filled.
struct GemmOperands {
  GemmShape shape;
  Int sets;
  std::size_t a, b, c;
  DeviceBuffer memory;

  GemmOperands(const GemmShape& s, Int at_least)
      : shape(s), sets(std::max(at_least, rotating_sets(rounded(s.a_bytes()) + rounded(s.b_bytes()) + rounded(s.c_bytes())))), a(rounded(s.a_bytes())), b(rounded(s.b_bytes())),
        c(rounded(s.c_bytes())), memory(static_cast<std::size_t>(sets) * (a + b + c)) {
    const ElementType type = element_type(s.dtype);
    const auto elements = [&](std::size_t bytes) { return static_cast<Int>(bytes / element_bytes(type)); };
    for (Int i = 0; i < sets; ++i) {
      fill_normal(at(i), elements(a), type, 1.0f, static_cast<std::uint64_t>(3 * i) << 40, nullptr);
      fill_normal(at(i) + a, elements(b), type, 0.02f, static_cast<std::uint64_t>(3 * i + 1) << 40, nullptr);
      REHEARSE_CUDA(cudaMemset(at(i) + a + b, 0, c));
    }
    REHEARSE_CUDA(cudaDeviceSynchronize());
  }
  char* at(Int set) const { return memory.data() + static_cast<std::size_t>(set % sets) * (a + b + c); }
};

class PageableOrPinned {
 public:
  PageableOrPinned(std::size_t bytes, bool pinned) : pinned_(pinned) {
    if (pinned) REHEARSE_CUDA(cudaHostAlloc(&data_, bytes, cudaHostAllocDefault));
    else data_ = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (data_ == nullptr) throw NotPossible("the host has too little memory");
    std::memset(data_, 1, bytes);
  }
  ~PageableOrPinned() { pinned_ ? (void)cudaFreeHost(data_) : std::free(data_); }
  PageableOrPinned(const PageableOrPinned&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  bool pinned_;
};

/// Copies in one or both directions; the time from the first one's begin to the last one's end.
class TransferWork final : public Work {
 public:
  TransferWork(const std::string& direction, std::size_t bytes, bool pinned)
      : direction_(direction), bytes_(bytes), pinned_(pinned), down_(bytes), up_(direction == "host_to_device" ? 0 : bytes),
        host_down_(bytes, pinned), host_up_(direction == "both" ? bytes : 1, pinned) {
    REHEARSE_CUDA(cudaMemset(down_.data(), 1, bytes));
    REHEARSE_CUDA(cudaDeviceSynchronize());
  }

  void enqueue(cudaStream_t down, cudaStream_t up) {
    if (direction_ != "device_to_host") REHEARSE_CUDA(cudaMemcpyAsync(down_.data(), host_down_.data(), bytes_, cudaMemcpyHostToDevice, down));
    if (direction_ == "device_to_host") REHEARSE_CUDA(cudaMemcpyAsync(host_down_.data(), down_.data(), bytes_, cudaMemcpyDeviceToHost, down));
    if (direction_ == "both") REHEARSE_CUDA(cudaMemcpyAsync(host_up_.data(), up_.data(), bytes_, cudaMemcpyDeviceToHost, up));
  }

  double run(std::int64_t count) override {
    const auto start = Moment::now();
    REHEARSE_CUDA(cudaEventRecord(begin_, first_));
    REHEARSE_CUDA(cudaStreamWaitEvent(second_, begin_, 0));
    for (std::int64_t i = 0; i < count; ++i) enqueue(first_, second_);
    REHEARSE_CUDA(cudaEventRecord(other_, second_));
    REHEARSE_CUDA(cudaStreamWaitEvent(first_, other_, 0));
    REHEARSE_CUDA(cudaEventRecord(end_, first_));
    REHEARSE_CUDA(cudaEventSynchronize(end_));
    // The host carries pageable copies itself, in part before the stream knows of them.
    return pinned_ ? between(begin_, end_) : since(start);
  }
  std::int64_t most_repeats() const override { return 200; }

 private:
  std::string direction_;
  std::size_t bytes_;
  bool pinned_;
  DeviceBuffer down_, up_;
  PageableOrPinned host_down_, host_up_;
  Stream first_, second_;
  Event begin_, other_, end_;
};

/// The GPU that this thread speaks to stays the same, whatever is thrown in between.
class SameGpu {
 public:
  SameGpu() { REHEARSE_CUDA(cudaGetDevice(&gpu_)); }
  ~SameGpu() { cudaSetDevice(gpu_); }
  SameGpu(const SameGpu&) = delete;

 private:
  int gpu_ = 0;
};

/// GPU to GPU, by the copy engines.
class PeerWork final : public Work {
 public:
  PeerWork(std::size_t bytes, int first, int second, bool both) : bytes_(bytes), first_(first), second_(second), both_(both) {
    const SameGpu back;
    int count = 0, can = 0;
    REHEARSE_CUDA(cudaGetDeviceCount(&count));
    if (std::max(first, second) >= count) throw NotPossible("this process sees one GPU only");
    REHEARSE_CUDA(cudaDeviceCanAccessPeer(&can, first, second));
    for (int side = 0; side < 2; ++side) {
      REHEARSE_CUDA(cudaSetDevice(side == 0 ? first : second));
      if (can) {
        const cudaError_t e = cudaDeviceEnablePeerAccess(side == 0 ? second : first, 0);
        if (e != cudaSuccess && e != cudaErrorPeerAccessAlreadyEnabled) check(e, "peer access");
        cudaGetLastError();
      }
      from_[side] = DeviceBuffer(bytes);
      to_[side] = DeviceBuffer(bytes);
      streams_[side] = std::make_unique<Stream>();
      done_[side] = std::make_unique<Event>();
    }
    note_ = can ? "" : "without peer access: through host memory";
  }
  ~PeerWork() override {
    int own = 0;
    cudaGetDevice(&own);
    for (int side = 0; side < 2; ++side) {
      cudaSetDevice(side == 0 ? first_ : second_);
      from_[side] = DeviceBuffer();
      to_[side] = DeviceBuffer();
      streams_[side].reset();
      done_[side].reset();
    }
    cudaSetDevice(own);
  }
  double run(std::int64_t count) override {
    const auto begin = Moment::now();
    for (std::int64_t i = 0; i < count; ++i) {
      REHEARSE_CUDA(cudaMemcpyPeerAsync(to_[1].data(), second_, from_[0].data(), first_, bytes_, *streams_[0]));
      if (both_) REHEARSE_CUDA(cudaMemcpyPeerAsync(to_[0].data(), first_, from_[1].data(), second_, bytes_, *streams_[1]));
    }
    REHEARSE_CUDA(cudaStreamSynchronize(*streams_[0]));
    if (both_) REHEARSE_CUDA(cudaStreamSynchronize(*streams_[1]));
    return since(begin);
  }
  std::int64_t most_repeats() const override { return 200; }
  std::string note() const override { return note_; }

 private:
  std::size_t bytes_;
  int first_, second_;
  bool both_;
  DeviceBuffer from_[2], to_[2];
  std::unique_ptr<Stream> streams_[2];
  std::unique_ptr<Event> done_[2];
  std::string note_;
};

/// Send and receive buffers of a collective.
struct CollectiveOperands {
  Int bytes;
  std::string kind, pattern, dtype;
  DeviceBuffer send, receive;
  bool in_place;

  explicit CollectiveOperands(const Facts& p)
      : bytes(whole(p, "bytes")), kind(text(p, "collective", "all_reduce")), pattern(text(p, "pattern", "pair")), dtype(text(p, "dtype", "bf16")), send(static_cast<std::size_t>(bytes)),
        in_place(flag(p, "in_place")) {
    if (!in_place) receive = DeviceBuffer(static_cast<std::size_t>(bytes));
    fill_normal(send.data(), bytes / 2, ElementType::bf16, 0.02f, 5, nullptr);
    REHEARSE_CUDA(cudaDeviceSynchronize());
  }
  void enqueue(Nccl& nccl, const NcclGroup& group, cudaStream_t stream) {
    nccl.enqueue(group, kind, pattern, dtype, bytes, send.data(), in_place ? send.data() : receive.data(), stream);
  }
};

class CollectiveWork final : public Work {
 public:
  CollectiveWork(const Facts& p, Nccl& nccl, const NcclGroup& group) : operands_(p), nccl_(nccl), group_(group) {}
  double run(std::int64_t count) override {
    // One that does not count makes the ranks begin together, on the GPUs rather than on the hosts.
    operands_.enqueue(nccl_, group_, stream_);
    REHEARSE_CUDA(cudaEventRecord(begin_, stream_));
    for (std::int64_t i = 0; i < count; ++i) operands_.enqueue(nccl_, group_, stream_);
    REHEARSE_CUDA(cudaEventRecord(end_, stream_));
    REHEARSE_CUDA(cudaEventSynchronize(end_));
    return between(begin_, end_);
  }
  std::int64_t most_repeats() const override { return 50; }

 private:
  CollectiveOperands operands_;
  Nccl& nccl_;
  NcclGroup group_;
  Stream stream_;
  Event begin_, end_;
};

/// `timed` on one stream while `beside` runs on others from before its begin until after its end.
class OverlapWork final : public Work {
 public:
  using Act = std::function<void(Int)>;
  OverlapWork(Enqueue timed, std::function<void(cudaStream_t, cudaStream_t)> beside, const Agree& agree, std::string note)
      : timed_(std::move(timed)), beside_(std::move(beside)), note_(std::move(note)) {
    // How long each takes alone says how many of the other it takes; all processes must enqueue the same number.
    constexpr double kFailed = 1e30;
    double timed_seconds = kFailed, beside_seconds = kFailed;
    std::exception_ptr mine;
    try {
      alone(10, true), alone(10, false);
      timed_seconds = alone(20, true), beside_seconds = alone(20, false);
    } catch (...) {
      mine = std::current_exception();
    }
    const double t = agree(timed_seconds), b = agree(beside_seconds);
    if (mine) std::rethrow_exception(mine);
    if (std::max(t, b) >= kFailed) throw NotPossible("it failed in another process");
    per_timed_ = 3 * t / b;
  }
  double run(std::int64_t count) override {
    const auto others = static_cast<Int>(2 + std::ceil(per_timed_ * static_cast<double>(count)));
    // A tenth of the others goes first.
    for (Int i = 0; i < others; ++i) {
      if (i == others / 10 + 1) launch_timed(count);
      beside_(second_, third_);
    }
    if (others <= others / 10 + 1) launch_timed(count);
    REHEARSE_CUDA(cudaEventRecord(beside_end_, second_));
    REHEARSE_CUDA(cudaEventSynchronize(end_));
    REHEARSE_CUDA(cudaDeviceSynchronize());
    float ms = 0;
    REHEARSE_CUDA(cudaEventElapsedTime(&ms, end_, beside_end_));
    if (ms < 0) ended_early_ = true;
    return between(begin_, end_);
  }
  std::int64_t most_repeats() const override { return std::max<Int>(1, static_cast<Int>(std::min(100.0, 400.0 / std::max(per_timed_, 1.0)))); }
  std::string note() const override { return note_ + (ended_early_ ? (note_.empty() ? "" : "; ") + std::string("the other operation ended first in some samples") : ""); }

 private:
  void launch_timed(Int count) {
    REHEARSE_CUDA(cudaEventRecord(begin_, first_));
    for (Int i = 0; i < count; ++i) timed_(first_, next_++);
    REHEARSE_CUDA(cudaEventRecord(end_, first_));
  }
  double alone(Int count, bool timed) {
    const auto begin = Moment::now();
    for (Int i = 0; i < count; ++i) timed ? timed_(first_, next_++) : beside_(second_, third_);
    REHEARSE_CUDA(cudaDeviceSynchronize());
    return since(begin) / static_cast<double>(count);
  }

  Enqueue timed_;
  std::function<void(cudaStream_t, cudaStream_t)> beside_;
  std::string note_;
  Stream first_, second_, third_;
  Event begin_, end_, beside_end_;
  double per_timed_ = 1;
  Int next_ = 0;
  bool ended_early_ = false;
};

}  // namespace

std::unique_ptr<Work> kernel_work(Enqueue enqueue, std::string note) { return std::make_unique<KernelWork>(std::move(enqueue), std::move(note)); }

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

Enqueue gemm_enqueue(const Facts& p, std::string* note) {
  const std::shared_ptr<Gemm> gemm = prepare_gemm(gemm_shape(p));
  const auto operands = std::make_shared<GemmOperands>(gemm_shape(p), 1);
  if (note != nullptr) *note = gemm->note();
  return [=](cudaStream_t stream, Int i) {
    char* at = operands->at(i);
    gemm->enqueue(at, at + operands->a, at + operands->a + operands->b, stream);
  };
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
  auto once = [=](cudaStream_t stream, Int i) {
    for (Int e = 0; e < experts; ++e) {
      char* at = operands->at(i * experts + e);
      gemm->enqueue(at, at + operands->a, at + operands->a + operands->b, stream);
    }
  };
  // Many kernels per execution: the launch queue must not fill while the stream is held up.
  struct Fewer final : Work {
    Fewer(std::unique_ptr<Work> w, Int m, std::string n) : work(std::move(w)), most(m), text(std::move(n)) {}
    double run(Int count) override { return work->run(count); }
    Int most_repeats() const override { return most; }
    std::string note() const override { return text; }
    std::unique_ptr<Work> work;
    Int most;
    std::string text;
  };
  return std::make_unique<Fewer>(kernel_work(once, ""), std::max<Int>(1, 300 / experts), "balanced: every expert has the same tokens; " + gemm->note());
}

std::unique_ptr<Work> launch_work(const std::string& operation, const Facts& p) {
  const auto stream = std::make_shared<Stream>();
  const std::string what = text(p, "what");
  if (operation == "kernel_launch") {
    const Int bytes = whole(p, "arguments_bytes", 8);
    if (what == "gap") return kernel_work([bytes](cudaStream_t s, Int) { launch_empty(bytes, s); }, "");
    if (what == "latency")
      return std::make_unique<HostClockWork>([=](Int count) {
        for (Int i = 0; i < count; ++i) {
          launch_empty(bytes, *stream);
          REHEARSE_CUDA(cudaStreamSynchronize(*stream));
        }
        return -1.0;
      }, 1000);
    return std::make_unique<HostClockWork>([=](Int count) {
      const auto begin = Moment::now();
      for (Int i = 0; i < count; ++i) launch_empty(bytes, *stream);
      const double host = since(begin);
      REHEARSE_CUDA(cudaStreamSynchronize(*stream));
      return host;
    }, 300);
  }
  const Int nodes = whole(p, "nodes");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  REHEARSE_CUDA(cudaStreamBeginCapture(*stream, cudaStreamCaptureModeThreadLocal));
  for (Int i = 0; i < nodes; ++i) launch_empty(8, *stream);
  REHEARSE_CUDA(cudaStreamEndCapture(*stream, &graph));
  REHEARSE_CUDA(cudaGraphInstantiate(&made, graph, 0));
  REHEARSE_CUDA(cudaGraphDestroy(graph));
  const std::shared_ptr<CUgraphExec_st> executable(made, [](cudaGraphExec_t e) { cudaGraphExecDestroy(e); });
  return std::make_unique<HostClockWork>([=](Int count) {
    if (what == "gap") {  // device time per node
      Event begin, end;
      REHEARSE_CUDA(cudaGraphLaunch(executable.get(), *stream));
      REHEARSE_CUDA(cudaEventRecord(begin, *stream));
      for (Int i = 0; i < count; ++i) REHEARSE_CUDA(cudaGraphLaunch(executable.get(), *stream));
      REHEARSE_CUDA(cudaEventRecord(end, *stream));
      REHEARSE_CUDA(cudaEventSynchronize(end));
      return between(begin, end) / static_cast<double>(nodes);
    }
    double host = 0;
    const auto begin = Moment::now();
    for (Int i = 0; i < count; ++i) {
      REHEARSE_CUDA(cudaGraphLaunch(executable.get(), *stream));
      if (what == "latency") REHEARSE_CUDA(cudaStreamSynchronize(*stream));
    }
    host = since(begin);
    REHEARSE_CUDA(cudaStreamSynchronize(*stream));
    return host;
  }, what == "host" ? std::clamp<Int>(1000 / nodes, 1, 100) : 100);  // the host's own time shows while the launch queue has room
}

std::unique_ptr<Work> transfer_work(const Facts& p, int own_gpu) {
  const std::string direction = text(p, "direction");
  const auto bytes = static_cast<std::size_t>(whole(p, "bytes"));
  if (direction == "peer" || direction == "peer_both")
    return std::make_unique<PeerWork>(bytes, static_cast<int>(whole(p, "first", own_gpu)), static_cast<int>(whole(p, "second")), direction == "peer_both");
  if (direction != "device_to_device") return std::make_unique<TransferWork>(direction, bytes, flag(p, "pinned", true));
  const Int sets = rotating_sets(2 * bytes);
  const auto memory = std::make_shared<DeviceBuffer>(static_cast<std::size_t>(2 * sets) * bytes);
  REHEARSE_CUDA(cudaMemset(memory->data(), 1, memory->bytes()));
  return kernel_work([=](cudaStream_t stream, Int i) {
    char* at = memory->data() + static_cast<std::size_t>(2 * (i % sets)) * bytes;
    REHEARSE_CUDA(cudaMemcpyAsync(at + bytes, at, bytes, cudaMemcpyDeviceToDevice, stream));
  }, "");
}

std::unique_ptr<Work> collective_work(const Facts& p, Nccl& nccl, const NcclGroup& group) { return std::make_unique<CollectiveWork>(p, nccl, group); }

std::function<std::unique_ptr<Work>(const Agree&)> overlap_work(const Facts& p, Nccl* nccl, const NcclGroup& group) {
  const bool gemm_is_timed = text(p, "timed") == "gemm";
  std::string note;
  const Enqueue gemm = gemm_enqueue(p, &note);
  std::function<void(cudaStream_t, cudaStream_t)> other;
  if (text(p, "timed") == "transfer" || text(p, "beside") == "transfer") {
    const auto copies = std::make_shared<TransferWork>(text(p, "direction", "host_to_device"), static_cast<std::size_t>(whole(p, "bytes")), true);
    // Both directions on one pair of streams; the first waits for the second so that one event tells the end.
    const auto joined = std::make_shared<Event>();
    other = [=](cudaStream_t a, cudaStream_t b) {
      copies->enqueue(a, b);
      REHEARSE_CUDA(cudaEventRecord(*joined, b));
      REHEARSE_CUDA(cudaStreamWaitEvent(a, *joined, 0));
    };
  } else {
    if (nccl == nullptr) throw NotPossible("there is one GPU");
    const auto operands = std::make_shared<CollectiveOperands>(p);
    other = [=](cudaStream_t a, cudaStream_t) { operands->enqueue(*nccl, group, a); };
  }
  const auto own = std::make_shared<Stream>();  // the second direction of a timed transfer
  const auto count = std::make_shared<Int>(0);
  return [=](const Agree& agree) -> std::unique_ptr<Work> {
    if (gemm_is_timed) return std::make_unique<OverlapWork>(gemm, other, agree, note);
    return std::make_unique<OverlapWork>([=](cudaStream_t s, Int) { other(s, *own); }, [=](cudaStream_t s, cudaStream_t) { gemm(s, (*count)++); }, agree, note);
  };
}

}  // namespace rehearse::calibrate
