#ifdef REHEARSE_WITHOUT_NCCL
#include "calibrate/probe/cuda/nccl.h"
#include "calibrate/probe/device.h"

namespace rehearse::calibrate {
std::unique_ptr<Nccl> open_nccl(Team&) { throw NotPossible("the probe was built without nccl.h"); }
}  // namespace rehearse::calibrate
#else
#include <nccl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "calibrate/probe/cases.h"
#include "calibrate/probe/cuda/check.h"
#include "calibrate/probe/cuda/library.h"
#include "calibrate/probe/cuda/nccl.h"
#include "calibrate/probe/parameters.h"

namespace rehearse::calibrate {
namespace {

struct Api {
  Library library{"NCCL", {"libnccl.so.2", "libnccl.so"}};
  decltype(&ncclGetVersion) version = nullptr;
  decltype(&ncclGetUniqueId) unique_id = nullptr;
  decltype(&ncclCommInitRank) init = nullptr;
  decltype(&ncclCommSplit) split = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclGetErrorString) error_text = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;

  Api() {
    library.find(version, "ncclGetVersion");
    library.find(unique_id, "ncclGetUniqueId");
    library.find(init, "ncclCommInitRank");
    library.find(split, "ncclCommSplit");
    library.find(destroy, "ncclCommDestroy");
    library.find(error_text, "ncclGetErrorString");
    library.find(all_reduce, "ncclAllReduce");
    library.find(all_gather, "ncclAllGather");
    library.find(reduce_scatter, "ncclReduceScatter");
    library.find(broadcast, "ncclBroadcast");
    library.find(reduce, "ncclReduce");
    library.find(send, "ncclSend");
    library.find(receive, "ncclRecv");
    library.find(group_start, "ncclGroupStart");
    library.find(group_end, "ncclGroupEnd");
  }
  void ok(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess) return;
    const std::string text = std::string("NCCL: ") + what + ": " + error_text(result);
    if (cudaDeviceSynchronize() != cudaSuccess) throw DeviceLost(text);
    throw NotPossible(text);
  }
};

/// NCCL's log of how it connects the ranks, without the host names at the beginning of each line.
class Log {
 public:
  Log() : file_(std::filesystem::temp_directory_path() / ("rehearse-probe-nccl-" + std::to_string(::getpid()))) {
    if (std::getenv("NCCL_DEBUG") != nullptr) return;  // the user wants to see it
    ::setenv("NCCL_DEBUG", "INFO", 1);
    ::setenv("NCCL_DEBUG_SUBSYS", "INIT,GRAPH,TUNING", 1);
    ::setenv("NCCL_DEBUG_FILE", file_.c_str(), 1);
    ours_ = true;
  }
  ~Log() {
    std::error_code ignored;
    if (ours_) std::filesystem::remove(file_, ignored);
  }
  std::vector<std::string> lines() const {
    std::vector<std::string> out;
    std::ifstream in(file_);
    for (std::string line; out.size() < 60 && std::getline(in, line);) {
      const std::size_t at = line.find("NCCL INFO ");
      if (at == std::string::npos) continue;
      line = line.substr(at + 10);
      for (const char* telling : {"coll channels", "Channel 00/", "Trees [0]", "NVLS comm", "Pattern", "threadThresholds"})
        if (line.find(telling) != std::string::npos) {
          out.push_back(line);
          break;
        }
    }
    return out;
  }

 private:
  std::filesystem::path file_;
  bool ours_ = false;
};

class RealNccl final : public Nccl {
 public:
  explicit RealNccl(Team& team) : team_(team) {
    std::string why;
    try {
      api_ = std::make_unique<Api>();
    } catch (const NotPossible& e) {
      why = e.what();
    }
    // All or none: a process that waits for one that failed would wait for ever.
    if (team.largest({why.empty() ? 0.0 : 1.0})[0] > 0) throw NotPossible(why.empty() ? "NCCL could not be loaded by another process" : why);
    ncclUniqueId id{};
    std::string shared;
    if (team.rank() == 0) try {
        api_->ok(api_->unique_id(&id), "an id for the ranks");
        shared.assign(id.internal, sizeof id.internal);
      } catch (const NotPossible& e) {
        why = e.what();
      }
    shared = team.from_first(shared);
    if (shared.size() != sizeof id.internal) throw NotPossible(why.empty() ? "NCCL does not work in process 0" : why);
    std::memcpy(id.internal, shared.data(), sizeof id.internal);
    api_->ok(api_->init(&world_, team.size(), id, team.rank()), "connecting the ranks");
    channels_ = log_.lines();
  }

  std::string version() const override {
    int v = 0;
    api_->ok(api_->version(&v), "its version");
    return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
  }
  std::vector<std::string> channels() const override { return channels_; }

  NcclGroup group(const Facts& parameters, int ranks_per_node) override {
    const Facts shape = {{"ranks", whole(parameters, "ranks", 1)}, {"nodes", whole(parameters, "nodes", 1)}, {"stride", whole(parameters, "stride", 1)}};
    const int size = static_cast<int>(whole(parameters, "ranks", 1)), groups = static_cast<int>(whole(parameters, "groups", 1));
    int mine = -1, place = 0;
    for (int g = 0; mine < 0; ++g) {
      const std::vector<int> members = group_members(shape, g, ranks_per_node);
      if (members.back() >= team_.size()) break;
      for (std::size_t i = 0; i < members.size(); ++i)
        if (members[i] == team_.rank()) mine = g, place = static_cast<int>(i);
    }
    auto [at, is_new] = groups_.try_emplace(shape);
    if (is_new) {
      if (size == team_.size()) at->second = world_;
      else api_->ok(api_->split(world_, mine < 0 ? NCCL_SPLIT_NOCOLOR : mine, place, &at->second, nullptr), "making groups");
    }
    if (mine < 0 || mine >= groups) return {};
    return {at->second, place, size};
  }

  void enqueue(const NcclGroup& g, const std::string& collective, const std::string& pattern, const std::string& dtype, std::int64_t bytes, const void* send,
               void* receive, cudaStream_t stream) override {
    auto* comm = static_cast<ncclComm_t>(g.communicator);
    const ncclDataType_t type = dtype == "fp32" ? ncclFloat32 : dtype == "fp16" ? ncclFloat16 : dtype == "bf16" ? ncclBfloat16 : ncclInt8;
    const std::size_t element = type == ncclFloat32 ? 4 : type == ncclInt8 ? 1 : 2;
    const std::size_t count = static_cast<std::size_t>(bytes) / element, share = count / static_cast<std::size_t>(g.size);
    const auto part = [&](const void* buffer, int i) { return const_cast<char*>(static_cast<const char*>(buffer)) + static_cast<std::size_t>(i) * share * element; };
    const Api& a = *api_;
    if (send == receive) {  // in place: a rank's shard lies at its own place in the whole
      if (collective == "all_gather") send = part(receive, g.rank);
      else if (collective == "reduce_scatter") receive = part(send, g.rank);
      else if (collective == "all_to_all" || collective == "send_recv") throw NotPossible("it cannot be done in place");
    }
    if (collective == "all_reduce") return a.ok(a.all_reduce(send, receive, count, type, ncclSum, comm, stream), "all-reduce");
    if (collective == "all_gather") return a.ok(a.all_gather(send, receive, share, type, comm, stream), "all-gather");
    if (collective == "reduce_scatter") return a.ok(a.reduce_scatter(send, receive, share, type, ncclSum, comm, stream), "reduce-scatter");
    if (collective == "broadcast") return a.ok(a.broadcast(send, receive, count, type, 0, comm, stream), "broadcast");
    if (collective == "reduce") return a.ok(a.reduce(send, receive, count, type, ncclSum, 0, comm, stream), "reduce");
    a.ok(a.group_start(), "a group of calls");
    if (collective == "all_to_all") {
      for (int peer = 0; peer < g.size; ++peer) {
        a.ok(a.send(part(send, peer), share, type, peer, comm, stream), "send");
        a.ok(a.receive(part(receive, peer), share, type, peer, comm, stream), "receive");
      }
    } else if (pattern == "ring") {
      a.ok(a.send(send, count, type, (g.rank + 1) % g.size, comm, stream), "send");
      a.ok(a.receive(receive, count, type, (g.rank + g.size - 1) % g.size, comm, stream), "receive");
    } else {
      if (g.rank == 0) a.ok(a.send(send, count, type, g.size - 1, comm, stream), "send");
      if (g.rank == g.size - 1) a.ok(a.receive(receive, count, type, 0, comm, stream), "receive");
    }
    a.ok(a.group_end(), "a group of calls");
  }

 private:
  Team& team_;
  Log log_;
  std::unique_ptr<Api> api_;
  ncclComm_t world_ = nullptr;
  std::map<Facts, ncclComm_t> groups_;
  std::vector<std::string> channels_;
};

}  // namespace

std::unique_ptr<Nccl> open_nccl(Team& team) { return std::make_unique<RealNccl>(team); }

}  // namespace rehearse::calibrate
#endif
