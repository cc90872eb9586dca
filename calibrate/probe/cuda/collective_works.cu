#include "calibrate/probe/cuda/kernels.h"
#include "calibrate/probe/cuda/works.h"
#include "calibrate/probe/parameters.h"

namespace rehearse::calibrate {
namespace {

using Int = std::int64_t;

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

}  // namespace

std::unique_ptr<Work> collective_work(const Facts& p, Nccl& nccl, const NcclGroup& group) { return std::make_unique<CollectiveWork>(p, nccl, group); }

PairEnqueue collective_enqueue(const Facts& p, Nccl& nccl, const NcclGroup& group) {
  const auto operands = std::make_shared<CollectiveOperands>(p);
  return [operands, &nccl, group](cudaStream_t a, cudaStream_t) { operands->enqueue(nccl, group, a); };
}

}  // namespace rehearse::calibrate
