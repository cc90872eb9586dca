#include <algorithm>
#include <cmath>
#include <exception>

#include "calibrate/probe/cuda/works.h"
#include "calibrate/probe/parameters.h"

namespace rehearse::calibrate {
namespace {

using Int = std::int64_t;

/// `timed` on one stream while `beside` runs on others from before its begin until after its end.
class OverlapWork final : public Work {
 public:
  OverlapWork(Enqueue timed, PairEnqueue beside, const Agree& agree, std::string note)
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
  PairEnqueue beside_;
  std::string note_;
  Stream first_, second_, third_;
  Event begin_, end_, beside_end_;
  double per_timed_ = 1;
  Int next_ = 0;
  bool ended_early_ = false;
};

}  // namespace

std::function<std::unique_ptr<Work>(const Agree&)> overlap_work(const Facts& p, Nccl* nccl, const NcclGroup& group) {
  const bool gemm_is_timed = text(p, "timed") == "gemm", copies = text(p, gemm_is_timed ? "beside" : "timed") == "transfer";
  if (!copies && nccl == nullptr) throw NotPossible("there is one GPU");
  std::string note;
  const Enqueue gemm = gemm_enqueue(p, &note);
  const PairEnqueue other = copies ? transfer_enqueue(p) : collective_enqueue(p, *nccl, group);
  const auto own = std::make_shared<Stream>();  // the second direction of a timed transfer
  const auto count = std::make_shared<Int>(0);
  return [=](const Agree& agree) -> std::unique_ptr<Work> {
    if (gemm_is_timed) return std::make_unique<OverlapWork>(gemm, other, agree, note);
    return std::make_unique<OverlapWork>([=](cudaStream_t s, Int) { other(s, *own); }, [=](cudaStream_t s, cudaStream_t) { gemm(s, (*count)++); }, agree, note);
  };
}

}  // namespace rehearse::calibrate
