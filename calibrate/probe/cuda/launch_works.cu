#include <algorithm>

#include "calibrate/probe/cuda/kernels.h"
#include "calibrate/probe/cuda/works.h"
#include "calibrate/probe/parameters.h"

namespace rehearse::calibrate {

using Int = std::int64_t;

std::unique_ptr<Work> launch_work(const std::string& operation, const Facts& p) {
  const auto stream = std::make_shared<Stream>();
  const std::string what = text(p, "what");
  if (operation == "kernel_launch") {
    const Int bytes = whole(p, "arguments_bytes", 8);
    if (what == "gap") return kernel_work([bytes](cudaStream_t s, Int) { launch_empty(bytes, s); }, "");
    if (what == "latency")
      return host_clock_work([=](Int count) {
        for (Int i = 0; i < count; ++i) {
          launch_empty(bytes, *stream);
          REHEARSE_CUDA(cudaStreamSynchronize(*stream));
        }
        return -1.0;
      }, 1000);
    return host_clock_work([=](Int count) {
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
  // The first launch may load code, which a stream that is captured does not allow.
  launch_empty(8, *stream);
  REHEARSE_CUDA(cudaStreamSynchronize(*stream));
  REHEARSE_CUDA(cudaStreamBeginCapture(*stream, cudaStreamCaptureModeThreadLocal));
  for (Int i = 0; i < nodes; ++i) launch_empty(8, *stream);
  REHEARSE_CUDA(cudaStreamEndCapture(*stream, &graph));
  REHEARSE_CUDA(cudaGraphInstantiate(&made, graph, 0));
  REHEARSE_CUDA(cudaGraphDestroy(graph));
  const std::shared_ptr<CUgraphExec_st> executable(made, [](cudaGraphExec_t e) { cudaGraphExecDestroy(e); });
  return host_clock_work([=](Int count) {
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

}  // namespace rehearse::calibrate
