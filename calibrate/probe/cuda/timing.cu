#include "calibrate/probe/cuda/timing.h"

#include "calibrate/probe/cuda/kernels.h"
#include "calibrate/probe/rotation.h"

namespace rehearse::calibrate {
namespace {

class KernelWork final : public Work {
 public:
  KernelWork(Enqueue enqueue, std::string note, std::int64_t most_repeats) : enqueue_(std::move(enqueue)), note_(std::move(note)), most_repeats_(most_repeats) {
    REHEARSE_CUDA(cudaHostAlloc(&go_, sizeof(int), cudaHostAllocMapped));
    REHEARSE_CUDA(cudaHostGetDevicePointer(reinterpret_cast<void**>(&device_go_), go_, 0));
  }
  ~KernelWork() override {
    // Something may have been thrown while the stream was held up: the kernel that holds it still looks at the flag.
    *const_cast<volatile int*>(go_) = 1;
    cudaStreamSynchronize(stream_);
    cudaFreeHost(go_);
  }

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
  std::int64_t most_repeats() const override { return most_repeats_; }
  std::string note() const override { return note_; }

 private:
  Enqueue enqueue_;
  std::string note_;
  std::int64_t most_repeats_;
  Stream stream_;
  Event begin_, end_;
  int* go_ = nullptr;
  int* device_go_ = nullptr;
  std::int64_t next_ = 0;
  bool first_ = true;
};

class HostClockWork final : public Work {
 public:
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

}  // namespace

std::unique_ptr<Work> kernel_work(Enqueue enqueue, std::string note, std::int64_t most_repeats) {
  return std::make_unique<KernelWork>(std::move(enqueue), std::move(note), most_repeats);
}

std::unique_ptr<Work> host_clock_work(std::function<double(std::int64_t)> act, std::int64_t most_repeats) {
  return std::make_unique<HostClockWork>(std::move(act), most_repeats);
}

double between(cudaEvent_t begin, cudaEvent_t end) {
  float ms = 0;
  REHEARSE_CUDA(cudaEventElapsedTime(&ms, begin, end));
  return 1e-3 * static_cast<double>(ms);
}

std::int64_t rotating_sets(std::size_t bytes) {
  int device = 0, l2 = 0;
  REHEARSE_CUDA(cudaGetDevice(&device));
  REHEARSE_CUDA(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device));
  std::size_t free = 0, total = 0;
  REHEARSE_CUDA(cudaMemGetInfo(&free, &total));
  return rotating_sets(static_cast<std::int64_t>(bytes), std::int64_t{l2}, static_cast<std::int64_t>(free / 4));
}

}  // namespace rehearse::calibrate
