#include "calibrate/probe/cuda/cuda_device.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "calibrate/probe/cases.h"
#include "calibrate/probe/cuda/blas.h"
#include "calibrate/probe/cuda/check.h"
#include "calibrate/probe/cuda/nccl.h"
#include "calibrate/probe/cuda/works.h"
#include "calibrate/probe/nvml.h"
#include "calibrate/probe/parameters.h"

namespace rehearse::calibrate {
namespace {

std::string version_text(int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); }

/// How nvidia-smi sees the paths between GPUs and NICs; nothing when it is not there.
std::vector<std::string> topology() {
  std::vector<std::string> out;
  FILE* pipe = ::popen("nvidia-smi topo -m 2>/dev/null", "r");
  if (pipe == nullptr) return out;
  std::string line;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    if (c == '\033') {  // colours of the terminal: skip to the letter that ends them
      while (c != EOF && c != 'm') c = std::fgetc(pipe);
    } else if (c == '\n') {
      if (!line.empty() && out.size() < 80) out.push_back(line);
      line.clear();
    } else {
      line += static_cast<char>(c);
    }
  }
  return ::pclose(pipe) == 0 ? out : std::vector<std::string>{};
}

class CudaDevice final : public Device {
 public:
  CudaDevice(const RankInfo& me, Team& team) : me_(me), team_(team) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) throw NotPossible(error == cudaSuccess ? "CUDA sees none" : cudaGetErrorString(error));
    gpu_ = me.local_rank % count;
    if (me.local_rank >= count && count > 1)
      throw NotPossible("there are more processes on this node than GPUs (" + std::to_string(count) + ")");
    char address[32] = {};
    cudaDeviceGetPCIBusId(address, sizeof address, gpu_);
    nvml_ = nvml_gpu(address);
    if (nvml_ != nullptr) warnings_ = nvml_->warnings("GPU " + std::to_string(me.rank));  // before we are on it ourselves
    else warnings_.push_back("NVML (libnvidia-ml.so.1) is not there: clocks and throttling are not recorded");
    REHEARSE_CUDA(cudaSetDevice(gpu_));
    cudaSetDeviceFlags(cudaDeviceScheduleSpin);  // a wish: old drivers refuse it once the GPU is open
    cudaGetLastError();
    REHEARSE_CUDA(cudaFree(nullptr));
    REHEARSE_CUDA(cudaMemGetInfo(&free_, &total_));
    if (free_ < (std::size_t{2} << 30)) throw NotPossible("less than 2 GiB of its memory are free");
  }

  /// What every process must have done before the first of them may fail.
  void connect() {
    if (team_.size() < 2) return;
    try {
      nccl_ = open_nccl(team_);
    } catch (const NotPossible& e) {
      no_nccl_ = e.what();
    }
    // All or none: a communicator that one process lacks would have the others wait in their first collective.
    if (team_.largest({nccl_ == nullptr ? 1.0 : 0.0})[0] == 0) return;
    nccl_.reset();
    if (no_nccl_.empty()) no_nccl_ = "NCCL does not work in another process";
    warnings_.push_back("collectives are not measured: " + no_nccl_);
  }

  Facts machine() override {
    Facts out = nvml_ == nullptr ? Facts{} : nvml_->facts();
    cudaDeviceProp properties{};
    REHEARSE_CUDA(cudaGetDeviceProperties(&properties, gpu_));
    out["gpu"] = std::string(properties.name);
    out["compute_capability"] = std::int64_t{properties.major * 10 + properties.minor};
    out["sms"] = std::int64_t{properties.multiProcessorCount};
    out["gpu_memory_bytes"] = static_cast<std::int64_t>(total_);
    out["gpu_memory_free_bytes"] = static_cast<std::int64_t>(free_);
    out["l2_bytes"] = std::int64_t{properties.l2CacheSize};
    out["memory_bus_bits"] = std::int64_t{properties.memoryBusWidth};
    if (me_.rank == 0)
      if (auto lines = topology(); !lines.empty()) out["topology"] = std::move(lines);
    if (nccl_ != nullptr && !nccl_->channels().empty()) out["nccl_channels"] = nccl_->channels();
    return out;
  }

  Facts software() override {
    Facts out;
    int version = 0;
    if (cudaRuntimeGetVersion(&version) == cudaSuccess) out["cuda_runtime"] = version_text(version);
    if (cudaDriverGetVersion(&version) == cudaSuccess) out["cuda_driver"] = version_text(version);
    if (const std::string v = cublaslt_version(); !v.empty()) out["cublaslt"] = v;
    else warnings_.push_back("matrix products are not measured: cuBLASLt could not be loaded (put its folder into LD_LIBRARY_PATH)");
    if (nccl_ != nullptr) out["nccl"] = nccl_->version();
    out["built_for"] = std::string(REHEARSE_CUDA_BUILT_FOR);
    return out;
  }

  std::vector<std::string> warnings() override {
    // Rank 0 tells of all GPUs: the others' words come to it only as "something is wrong".
    const bool others = team_.largest({me_.rank != 0 && !warnings_.empty() ? 1.0 : 0.0})[0] > 0;
    if (me_.rank != 0)
      for (const std::string& w : warnings_) std::fprintf(stderr, "rehearse-probe: warning: %s\n", w.c_str());
    else if (others) warnings_.push_back("other GPUs have warnings too; they were printed when the probe began");
    return warnings_;
  }

  ClockState clocks() override { return nvml_ == nullptr ? ClockState{} : nvml_->clocks(); }

  std::unique_ptr<Work> prepare(const std::string& operation, const Facts& p) override {
    const Case c{operation, p, 0};
    const bool first = me_.rank == 0;
    if (operation == "gemm") return first ? gemm_work(p) : nullptr;
    if (operation == "grouped_gemm") return first ? grouped_gemm_work(p) : nullptr;
    if (operation.starts_with("attention_")) return first ? attention_work(p, operation == "attention_backward") : nullptr;
    if (operation == "memory_kernel") return first ? memory_kernel_work(p) : nullptr;
    if (operation == "kernel_launch" || operation == "graph_launch") return first ? launch_work(operation, p) : nullptr;
    if (operation == "transfer") {
      const bool peer = text(p, "direction").starts_with("peer");
      const int copying = peer ? 1 : gpus_of(c);
      return me_.rank < copying ? transfer_work(p, gpu_) : nullptr;
    }
    if (operation == "collective" || operation == "overlap") {
      const bool collective = operation == "collective" || text(p, "timed") == "collective" || text(p, "beside") == "collective";
      NcclGroup group;
      if (collective) {
        if (nccl_ == nullptr) throw NotPossible(team_.size() < 2 ? "there is one GPU" : no_nccl_);
        group = nccl_->group(p, ranks_per_node_);
      }
      const bool takes_part = collective ? group.communicator != nullptr : first;
      if (operation == "collective") return takes_part ? collective_work(p, *nccl_, group) : nullptr;
      return prepare_overlap(p, collective, takes_part, group);
    }
    throw NotPossible("the probe cannot measure it");
  }

  void set_ranks_per_node(int n) { ranks_per_node_ = n; }

 private:
  /// Its preparation already runs collectives: all processes must have what they need before, and agree in between.
  std::unique_ptr<Work> prepare_overlap(const Facts& p, bool collective, bool takes_part, const NcclGroup& group) {
    if (!collective) return takes_part ? overlap_work(p, nullptr, {})([](double v) { return v; }) : nullptr;
    const Agree agree = [this](double v) { return team_.largest({v})[0]; };
    std::function<std::unique_ptr<Work>(const Agree&)> begin;
    std::exception_ptr mine;
    try {
      if (takes_part) begin = overlap_work(p, nccl_.get(), group);
    } catch (...) {
      mine = std::current_exception();
    }
    const bool failed = agree(mine ? 1 : 0) > 0;
    if (mine) std::rethrow_exception(mine);
    if (failed) throw NotPossible("it is not possible for another process");
    if (begin) return begin(agree);
    agree(0), agree(0);
    return nullptr;
  }

  RankInfo me_;
  Team& team_;
  int gpu_ = 0, ranks_per_node_ = 1;
  std::size_t free_ = 0, total_ = 0;
  std::unique_ptr<NvmlGpu> nvml_;
  std::unique_ptr<Nccl> nccl_;
  std::string no_nccl_;
  std::vector<std::string> warnings_;
};

}  // namespace

int count_cuda_gpus() {
  int pipe[2];
  if (::pipe(pipe) != 0) return 0;
  const pid_t child = ::fork();
  if (child == 0) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
    const ssize_t n = ::write(pipe[1], &count, sizeof count);
    std::_Exit(n == sizeof count ? 0 : 1);
  }
  ::close(pipe[1]);
  int count = 0;
  if (::read(pipe[0], &count, sizeof count) != sizeof count) count = 0;
  ::close(pipe[0]);
  if (child > 0) ::waitpid(child, nullptr, 0);
  return count;
}

std::unique_ptr<Device> open_cuda_device(const RankInfo& me, Team& team) {
  std::unique_ptr<CudaDevice> device;
  std::string why;
  try {
    device = std::make_unique<CudaDevice>(me, team);
  } catch (const std::runtime_error& e) {
    why = e.what();
  }
  // One without a GPU ends all: the others would wait for it in their first collective.
  if (team.largest({why.empty() ? 0.0 : 1.0})[0] > 0) throw NotPossible(why.empty() ? "another process has no usable GPU" : why);
  device->set_ranks_per_node(static_cast<int>(team.largest({static_cast<double>(me.local_rank + 1)})[0]));
  device->connect();
  return device;
}

}  // namespace rehearse::calibrate
