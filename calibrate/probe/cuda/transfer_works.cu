#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "calibrate/probe/cuda/works.h"
#include "calibrate/probe/parameters.h"

namespace rehearse::calibrate {
namespace {

using Int = std::int64_t;

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

  void enqueue(cudaStream_t down, cudaStream_t up) const {
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

}  // namespace

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

PairEnqueue transfer_enqueue(const Facts& p) {
  const auto copies = std::make_shared<TransferWork>(text(p, "direction", "host_to_device"), static_cast<std::size_t>(whole(p, "bytes")), true);
  // The first stream waits for the second, so that one event tells the end of both.
  const auto joined = std::make_shared<Event>();
  return [=](cudaStream_t a, cudaStream_t b) {
    copies->enqueue(a, b);
    REHEARSE_CUDA(cudaEventRecord(*joined, b));
    REHEARSE_CUDA(cudaStreamWaitEvent(a, *joined, 0));
  };
}

}  // namespace rehearse::calibrate
