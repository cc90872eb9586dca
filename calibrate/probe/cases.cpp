#include "calibrate/probe/cases.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "sim/core/contract.h"

namespace rehearse::calibrate {
namespace {

using Int = std::int64_t;
constexpr Int kKi = 1024, kMi = kKi * kKi, kGi = kMi * kKi;

Int whole(const Facts& facts, const char* key, Int fallback) {
  const auto at = facts.find(std::string_view(key));
  return at == facts.end() ? fallback : std::get<Int>(at->second);
}
Fact text(std::string s) { return Fact(std::move(s)); }

/// `pattern` with * for anything, against all of `name`.
bool glob(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') return glob(pattern.substr(1), name) || (!name.empty() && glob(pattern, name.substr(1)));
  return !name.empty() && pattern[0] == name[0] && glob(pattern.substr(1), name.substr(1));
}

Case memory_kernel(const char* kernel, Int elements, Int row, const char* dtype, int tier) {
  const std::string k = kernel;
  const Int e = std::string(dtype) == "fp32" ? 4 : 2;
  Int read = elements * e, written = elements * e;
  if (k == "add") read *= 2;
  if (k == "cast") read = elements * 4;                      // from fp32
  if (k == "adam") read = elements * (12 + e), written = elements * (12 + e);  // parameter and two moments in fp32; gradient in, copy out
  if (k == "memset") read = 0;
  if (k == "reduction") written = 0;
  Case out{"memory_kernel", {{"kernel", text(k)}, {"elements", elements}, {"dtype", text(dtype)}, {"bytes_read", read}, {"bytes_written", written}}, tier};
  if (row > 0) out.parameters["row"] = row;
  return out;
}

}  // namespace

std::vector<Case> attention_cases(const MachineShape& machine) {
  std::vector<Case> out;
  if (machine.compute_capability < 80) return out;  // the probe's kernel uses bf16 tensor cores
  for (const Int length : {Int{2048}, Int{512}, Int{1024}, Int{4096}, Int{8192}})
    for (const Int head_dim : {Int{128}, Int{64}})
      for (const bool causal : {true, false})
        for (const char* direction : {"attention_forward", "attention_backward"}) {
          const Int heads = 2048 / head_dim;
          out.push_back({direction,
                         {{"batch", std::max<Int>(1, 16384 / length)}, {"heads", heads}, {"kv_heads", heads / 4}, {"query_length", length},
                          {"key_length", length}, {"head_dim", head_dim}, {"causal", causal}, {"dtype", text("bf16")},
                          {"implementation", text("rehearse-tiled")}},
                         length == 2048 ? 0 : 1});
        }
  return out;
}

std::vector<Case> memory_kernel_cases(const MachineShape& machine) {
  std::vector<Case> out;
  const std::set<Int> quick = {kMi, 16 * kMi, 256 * kMi};
  for (const char* kernel : {"copy", "add", "rms_norm", "adam", "cast", "softmax", "layer_norm", "reduction", "memset"})
    for (Int elements = 64 * kKi; elements <= kGi; elements *= 4) {
      const std::string k = kernel;
      const Int row = k == "softmax" ? 2048 : k.ends_with("_norm") ? 4096 : 0;
      Case c = memory_kernel(kernel, elements, row, "bf16", quick.contains(elements) ? 0 : 1);
      const Int bytes = whole(c.parameters, "bytes_read", 0) + whole(c.parameters, "bytes_written", 0);
      if (bytes < machine.gpu_bytes / 2) out.push_back(std::move(c));
    }
  for (const Int vocabulary : {Int{32000}, Int{50304}, Int{128256}})
    for (const Int tokens : {Int{1024}, Int{4096}, Int{16384}})
      for (const char* dtype : {"bf16", "fp32"}) {
        if (tokens * vocabulary * 8 >= machine.gpu_bytes) continue;
        out.push_back(memory_kernel("cross_entropy", tokens * vocabulary, vocabulary, dtype, tokens == 4096 ? 0 : 1));
      }
  for (const Int row : {Int{768}, Int{1600}, Int{8192}, Int{16384}})
    for (const char* kernel : {"rms_norm", "layer_norm"}) out.push_back(memory_kernel(kernel, row * 8192, row, "bf16", 1));
  return out;
}

std::vector<Case> launch_cases(const MachineShape&) {
  std::vector<Case> out;
  for (const char* what : {"latency", "gap", "host"})
    for (const Int bytes : {Int{8}, Int{256}, Int{2048}})
      out.push_back({"kernel_launch", {{"what", text(what)}, {"arguments_bytes", bytes}}, bytes == 8 ? 0 : 1});
  for (const Int nodes : {Int{1}, Int{10}, Int{100}, Int{1000}})
    for (const char* what : {"latency", "gap", "host"}) out.push_back({"graph_launch", {{"what", text(what)}, {"nodes", nodes}}, nodes == 100 ? 0 : 1});
  return out;
}

std::vector<Case> transfer_cases(const MachineShape& machine) {
  std::vector<Case> out;
  const Int largest = std::min<Int>({kGi, machine.gpu_bytes / 8, machine.host_bytes / 8});
  const std::set<Int> quick = {4 * kKi, 64 * kKi, kMi, 16 * kMi, 64 * kMi, 256 * kMi};  // 64 MiB: beside GEMMs too
  for (const char* direction : {"host_to_device", "device_to_host", "both"})
    for (const bool pinned : {true, false})
      for (Int bytes = kKi; bytes <= largest; bytes *= 4) {
        if (!pinned && (std::string(direction) == "both" || bytes < 64 * kKi)) continue;
        Case c{"transfer", {{"direction", text(direction)}, {"bytes", bytes}}, quick.contains(bytes) && (pinned || bytes >= kMi) ? 0 : 1};
        if (!pinned) c.parameters["pinned"] = false;
        out.push_back(std::move(c));
      }
  for (Int bytes = 64 * kKi; bytes <= largest; bytes *= 4)
    out.push_back({"transfer", {{"direction", text("device_to_device")}, {"bytes", bytes}}, quick.contains(bytes) ? 0 : 1});
  // All GPUs of a node share its PCIe switches and its DRAM.
  for (int gpus = 2; gpus <= machine.ranks_per_node && gpus <= machine.ranks; gpus *= 2)
    for (const char* direction : {"host_to_device", "device_to_host", "both"})
      for (const Int bytes : {16 * kMi, 256 * kMi})
        if (bytes <= largest) out.push_back({"transfer", {{"direction", text(direction)}, {"bytes", bytes}, {"gpus", Int{gpus}}}, bytes == 256 * kMi ? 0 : 1});
  for (int other = 1; other < machine.ranks_per_node && other < machine.ranks; ++other)
    for (const char* direction : {"peer", "peer_both"})
      for (Int bytes = 4 * kKi; bytes <= largest; bytes *= 8)
        out.push_back({"transfer", {{"direction", text(direction)}, {"bytes", bytes}, {"second", Int{other}}},
                       other == 1 && (bytes == 256 * kKi || bytes == 128 * kMi) ? 0 : other == 1 ? 1 : 2});
  return out;
}

std::vector<Case> collective_cases(const MachineShape& machine) {
  std::vector<Case> out;
  const Int largest = std::min<Int>(8 * kGi, machine.gpu_bytes / 4);
  struct Group { int ranks, nodes; };
  std::vector<Group> groups;
  for (int r = 2; r < std::min(machine.ranks, machine.ranks_per_node); r *= 2) groups.push_back({r, 1});
  if (machine.ranks > 1) groups.push_back({std::min(machine.ranks, machine.ranks_per_node), 1});
  for (int n = 2; n <= machine.nodes(); n = n < machine.nodes() ? std::min(2 * n, machine.nodes()) : n + 1) {
    groups.push_back({n * machine.ranks_per_node, n});
    groups.push_back({n, n});  // one GPU of each node: data-parallel groups beside tensor parallelism
  }
  std::erase_if(groups, [&](const Group& g) { return g.ranks < 2 || g.ranks > machine.ranks; });
  if (machine.ranks_per_node == 1)  // the two kinds of groups across nodes are one
    groups.erase(std::unique(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.ranks == b.ranks && a.nodes == b.nodes; }), groups.end());
  for (const Group& g : groups)
    for (const char* kind : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast"}) {
      const auto make = [&](Int bytes, int tier) {
        Case c{"collective", {{"collective", text(kind)}, {"bytes", bytes}, {"ranks", Int{g.ranks}}}, tier};
        if (g.nodes > 1) c.parameters["nodes"] = Int{g.nodes};
        return c;
      };
      // Powers of four from 8 B; every rank's share must be whole elements of 2 bytes.
      int step = 0;
      for (Int bytes = 8; bytes <= largest; bytes *= 4, ++step) {
        const Int share = 2 * g.ranks;
        const Int whole_shares = std::max(share, bytes / share * share);
        if (whole_shares > bytes && bytes * 4 > whole_shares) continue;
        out.push_back(make(whole_shares, step % 2 == 0 || bytes >= 256 * kMi ? 0 : 1));
      }
      // All groups of a node, or of the cluster, at once.
      const int per_node = g.ranks / g.nodes, side_by_side = machine.ranks_per_node / per_node;
      if (side_by_side > 1)
        for (const Int bytes : {kMi, 64 * kMi, 512 * kMi}) {
          if (bytes > largest || bytes % (2 * g.ranks) != 0) continue;
          Case c = make(bytes, bytes == 64 * kMi ? 0 : 1);
          c.parameters["groups"] = Int{side_by_side};
          out.push_back(std::move(c));
        }
    }
  // A group given twice by the rounding of small sizes stands once.
  std::set<std::string> seen;
  std::erase_if(out, [&](const Case& c) { return !seen.insert(identity(c.operation, c.parameters)).second; });
  return out;
}

std::vector<Case> overlap_cases(const MachineShape& machine) {
  std::vector<Case> out;
  struct Shape { Int m, n, k; };
  for (const Shape& s : {Shape{8192, 8192, 8192}, Shape{4096, 4096, 4096}, Shape{8192, 28672, 4096}}) {
    const Facts gemm = {{"m", s.m}, {"n", s.n}, {"k", s.k}, {"dtype", text(machine.compute_capability >= 80 ? "bf16" : "fp16")}};
    for (const bool gemm_is_timed : {true, false}) {
      const auto add = [&](const char* other, Facts more, int tier) {
        more.insert(gemm.begin(), gemm.end());
        more["timed"] = text(gemm_is_timed ? "gemm" : other);
        more["beside"] = text(gemm_is_timed ? other : "gemm");
        out.push_back({"overlap", std::move(more), tier});
      };
      for (const char* direction : {"host_to_device", "device_to_host", "both"})
        add("transfer", {{"direction", text(direction)}, {"bytes", 64 * kMi}}, s.m == s.k && s.k == 8192 ? 0 : 1);
      if (machine.ranks < 2) continue;
      for (const char* kind : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
        for (const Int bytes : {32 * kMi, 512 * kMi}) {  // sizes that are also measured alone
          if (bytes > machine.gpu_bytes / 4) continue;
          const auto whole_shares = [&](int ranks) { return bytes / (2 * ranks) * (2 * ranks); };
          const int ranks = std::min(machine.ranks, machine.ranks_per_node);
          if (ranks > 1) add("collective", {{"collective", text(kind)}, {"bytes", whole_shares(ranks)}, {"ranks", Int{ranks}}}, bytes == 512 * kMi && s.k == 8192 ? 0 : 1);
          if (machine.nodes() > 1)
            add("collective", {{"collective", text(kind)}, {"bytes", whole_shares(machine.ranks)}, {"ranks", Int{machine.ranks}}, {"nodes", Int{machine.nodes()}}}, 1);
        }
    }
  }
  return out;
}

std::vector<Case> host_cases(const MachineShape& machine) {
  std::vector<Case> out;
  std::vector<Int> threads = {machine.cores};
  for (Int t = 1; t < machine.cores; t *= 4) threads.push_back(t);
  const Int bytes = std::min<Int>(4 * kGi, machine.host_bytes / 8) / (3 * kMi) * (3 * kMi);
  out.push_back({"host_memory", {{"kernel", text("read")}, {"bytes", 48 * kMi}, {"threads", Int{1}}}, 1});  // may lie in the last-level cache
  for (const Int t : threads) {
    for (const char* kernel : {"triad", "copy", "read", "write"})
      out.push_back({"host_memory", {{"kernel", text(kernel)}, {"bytes", bytes}, {"threads", t}}, t == machine.cores ? 0 : 1});
    out.push_back({"host_adam", {{"elements", bytes / 64}, {"threads", t}}, t == machine.cores || t == 1 ? 0 : 1});
  }
  if (!machine.directory) return out;
  for (const char* direction : {"write", "read"})
    for (const Int block : {kMi, 16 * kMi, 64 * kKi, 4 * kKi})
      for (const Int depth : {Int{1}, Int{8}, Int{32}}) {
        const Int moved = block < kMi ? 64 * kMi : std::max(256 * kMi, 2 * block * depth);  // each request in flight twice at least
        out.push_back({"file", {{"direction", text(direction)}, {"block_bytes", block}, {"depth", depth}, {"bytes", moved}}, block >= kMi && depth == 8 ? 0 : 1});
      }
  return out;
}

std::vector<Case> planned_cases(const MachineShape& machine) {
  std::vector<Case> all;
  const auto take = [&](std::vector<Case> cases) { all.insert(all.end(), cases.begin(), cases.end()); };
  if (machine.gpu)
    for (auto* make : {launch_cases, gemm_cases, memory_kernel_cases, transfer_cases, collective_cases, attention_cases, overlap_cases}) take(make(machine));
  take(host_cases(machine));
  std::vector<Case> out;
  for (int tier = 0; tier <= 2; ++tier) {
    std::map<std::string, std::vector<Case>> by_operation;
    std::size_t total = 0;
    for (const Case& c : all)
      if (c.tier == tier) by_operation[c.operation].push_back(c), ++total;
    std::vector<std::vector<Case>> rows;
    for (auto& [operation, row] : by_operation) rows.push_back(std::move(row));
    // Each operation advances in proportion to its length: at any moment all have come equally far.
    std::vector<std::size_t> taken(rows.size());
    while (total-- > 0) {
      std::size_t next = 0;
      double least = 2;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const double progress = rows[i].empty() ? 2 : static_cast<double>(taken[i]) / static_cast<double>(rows[i].size());
        if (taken[i] < rows[i].size() && progress < least) least = progress, next = i;
      }
      out.push_back(rows[next][taken[next]++]);
    }
  }
  // Two models may share a layer's shape.
  std::set<std::string> seen;
  std::erase_if(out, [&](const Case& c) { return !seen.insert(identity(c.operation, c.parameters)).second; });
  return out;
}

int gpus_of(const Case& c) {
  if (c.operation == "host_memory" || c.operation == "host_adam" || c.operation == "file") return 0;
  // grouped_gemm has groups too: experts on one GPU.
  const Int ranks = c.operation == "collective" ? whole(c.parameters, "ranks", 1) * whole(c.parameters, "groups", 1) : whole(c.parameters, "ranks", 1);
  return static_cast<int>(std::max({ranks, whole(c.parameters, "gpus", 1), whole(c.parameters, "second", 0) + 1, whole(c.parameters, "first", 0) + 1}));
}

std::vector<int> group_members(const Facts& parameters, int group, int ranks_per_node) {
  const int ranks = static_cast<int>(whole(parameters, "ranks", 1)), nodes = static_cast<int>(whole(parameters, "nodes", 1));
  const int stride = static_cast<int>(whole(parameters, "stride", 1)), per_node = ranks / nodes;
  EXPECTS(ranks == per_node * nodes && per_node * stride <= ranks_per_node);
  // A block of per_node * stride GPUs holds `stride` groups that interleave.
  const int blocks = ranks_per_node / (per_node * stride), on_these_nodes = blocks * stride;
  const int first_node = group / on_these_nodes * nodes, slot = group % on_these_nodes;
  const int base = slot / stride * per_node * stride + slot % stride;
  std::vector<int> out;
  for (int n = 0; n < nodes; ++n)
    for (int i = 0; i < per_node; ++i) out.push_back((first_node + n) * ranks_per_node + base + i * stride);
  return out;
}

bool matches(const Case& c, const std::string& patterns) {
  const std::string name = identity(c.operation, c.parameters);
  std::istringstream in(patterns);
  for (std::string pattern; std::getline(in, pattern, ',');) {
    if (pattern.empty()) continue;
    if (pattern.find('*') == std::string::npos ? name.find(pattern) != std::string::npos : glob(pattern, name)) return true;
  }
  return false;
}

}  // namespace rehearse::calibrate
