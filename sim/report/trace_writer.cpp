#include "sim/report/trace_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <ostream>
#include <tuple>

#include "sim/report/costs.h"
#include "sim/report/json_text.h"

namespace rehearse::report {
namespace {

using executor::Slice;
using plan::Opcode;

/// Nanoseconds, so that neighbours that touch still touch after rounding.
std::int64_t nanoseconds(std::int64_t ps) { return (ps + (ps >= 0 ? 500 : -500)) / 1000; }
std::string microseconds_text(std::int64_t ns) { return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000); }

class Writer {
 public:
  Writer(const Scenario& s, const Result& r, std::ostream& out, std::optional<std::size_t> only) : s_(s), r_(r), out_(out), slices_(r.trace), only_(only) {
    std::stable_sort(slices_.begin(), slices_.end(), [](const Slice& a, const Slice& b) { return std::tie(a.start, a.rank_class, a.stream) < std::tie(b.start, b.rank_class, b.stream); });
    // Classes that are ahead begin their step earlier than the last one: all times count from the first of them.
    if (!slices_.empty()) origin_ = std::min<std::int64_t>(0, slices_.front().start);
    if (only_) std::erase_if(slices_, [this](const Slice& slice) { return !shows(slice.rank_class); });
  }

  void write() {
    const int representative = r_.plan.classes.empty() ? 0 : pid(only_.value_or(0));
    out_ << fmt::format("{{\n\"schemaVersion\": 1,\n\"deviceProperties\": [{{\"id\": 0, \"name\": {}, \"totalGlobalMem\": {}, \"numSms\": {}}}],\n", json_text(s_.cluster.gpu.title),
                        s_.cluster.gpu.memory.value, s_.cluster.gpu.sms);
    out_ << fmt::format("\"distributedInfo\": {{\"backend\": {}, \"rank\": {}, \"world_size\": {}}},\n", json_text(s_.communication.backend), representative, s_.gpus());
    out_ << "\"displayTimeUnit\": \"ms\",\n\"traceName\": " << json_text(s_.title.empty() ? s_.file : s_.title) << ",\n\"traceEvents\": [\n";
    metadata();
    steps();
    collect_lines();
    slices_and_flows();
    out_ << "\n]\n}\n";
  }

 private:
  bool shows(std::size_t rank_class) const { return !only_ || *only_ == rank_class; }
  int pid(std::size_t rank_class) const { return r_.plan.classes[rank_class].representative; }

  void event(const std::string& text) {
    out_ << (first_ ? "" : ",\n") << text;
    first_ = false;
  }

  void metadata() {
    for (std::size_t c = 0; c < r_.plan.classes.size(); ++c) {
      if (!shows(c)) continue;
      const plan::RankClass& k = r_.plan.classes[c];
      const std::string name = fmt::format("rank {} ({}{})", k.representative, k.name, k.ranks == 1 ? "" : fmt::format(", {} GPUs alike", k.ranks));
      event(fmt::format(R"({{"ph": "M", "name": "process_name", "pid": {}, "tid": 0, "ts": 0, "args": {{"name": {}}}}})", pid(c), json_text(name)));
      event(fmt::format(R"({{"ph": "M", "name": "process_sort_index", "pid": {}, "tid": 0, "ts": 0, "args": {{"sort_index": {}}}}})", pid(c), c));
      std::array<bool, plan::kStreams> used{};
      for (const Slice& slice : slices_)
        if (slice.rank_class == c) used[static_cast<std::size_t>(slice.stream)] = true;
      for (int t = 0; t < plan::kStreams; ++t) {
        if (!used[static_cast<std::size_t>(t)]) continue;
        event(fmt::format(R"({{"ph": "M", "name": "thread_name", "pid": {}, "tid": {}, "ts": 0, "args": {{"name": {}}}}})", pid(c), t,
                          json_text(fmt::format("stream {} {}", t, name_of(static_cast<plan::Stream>(t))))));
        event(fmt::format(R"({{"ph": "M", "name": "thread_sort_index", "pid": {}, "tid": {}, "ts": 0, "args": {{"sort_index": {}}}}})", pid(c), t, t));
      }
    }
  }

  /// The step as PyTorch's profiler marks it, on a row for the host.
  void steps() {
    for (std::size_t c = 0; c < r_.plan.classes.size(); ++c) {
      if (!shows(c)) continue;
      event(fmt::format(R"({{"ph": "M", "name": "thread_name", "pid": {}, "tid": {}, "ts": 0, "args": {{"name": "host"}}}})", pid(c), plan::kStreams));
      if (!r_.classes[c].timing.host_works.empty()) event(fmt::format(R"({{"ph": "M", "name": "thread_name", "pid": {}, "tid": {}, "ts": 0, "args": {{"name": "optimizer on the CPU"}}}})", pid(c), plan::kStreams + 1));
      event(fmt::format(R"({{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": {}, "tid": {}, "ts": 0.000, "dur": {}, "args": {{}}}})", pid(c), plan::kStreams,
                        microseconds_text(nanoseconds(static_cast<std::int64_t>(r_.step_time * 1e12) - origin_))));
    }
  }

  /// Memory after each call, at the moment its first work starts on the device; and work of the hosts.
  void collect_lines() {
    for (std::size_t c = 0; c < r_.classes.size(); ++c) {
      if (!shows(c)) continue;
      std::map<std::uint32_t, std::int64_t> begins;
      for (const Slice& slice : slices_)
        if (slice.rank_class == c) begins.emplace(slice.call, slice.start);
      for (const executor::MemorySample& m : r_.classes[c].memory.timeline) {
        const auto at = begins.find(m.call);
        if (at == begins.end()) continue;
        lines_.push_back({at->second, fmt::format(R"({{"ph": "C", "name": "memory", "pid": {}, "ts": {}, "args": {{"allocated_bytes": {}, "reserved_bytes": {}}}}})", pid(c),
                                                        ts(at->second), m.allocated, m.reserved)});
      }
      for (const executor::HostSlice& work : r_.classes[c].timing.host_works) lines_.push_back({std::max(work.start, origin_), host_work(c, work)});
    }
    std::stable_sort(lines_.begin(), lines_.end(), [](const Line& a, const Line& b) { return a.start < b.start; });
  }

  std::string ts(std::int64_t ps) const { return microseconds_text(nanoseconds(ps - origin_)); }

  /// Analysers tell communication from computation by the names of NCCL's kernels.
  std::string communication(const std::string& kind) const { return (s_.communication.backend == "nccl" ? "ncclDevKernel_" : s_.communication.backend + ":") + kind; }

  std::string name(const Slice& s) const {
    switch (s.op) {
      case Opcode::kernel: return r_.plan.kernels[s.spec].name;
      case Opcode::collective: {
        const plan::CollectiveSpec& c = r_.plan.collectives[s.spec];
        std::string kind;
        bool begins = true;
        for (const char letter : std::string(name_of(c.kind))) {
          if (letter != '_') kind += begins ? static_cast<char>(std::toupper(static_cast<unsigned char>(letter))) : letter;
          begins = letter == '_';
        }
        return communication(kind) + ": " + c.name;
      }
      case Opcode::copy: return r_.plan.copies[s.spec].direction == plan::CopySpec::Direction::host_to_device ? "Memcpy HtoD" : "Memcpy DtoH";
      default: return communication("SendRecv") + (s.op == Opcode::send ? ": send" : ": recv");
    }
  }

  /// What does not change from one use of a spec to the next, written once per spec.
  const std::string& spec_args(const Slice& s) {
    auto [it, added] = args_.try_emplace({static_cast<int>(s.op), s.spec, s.rank_class});
    if (!added) return it->second;
    std::string& text = it->second;
    if (s.op == Opcode::kernel) {
      const model::KernelSpec& k = r_.plan.kernels[s.spec];
      text = fmt::format(R"("kind": "{}", "dtype": "{}", "flops": {}, "bytes": {})", name_of(k.kind), name_of(k.dtype), model::flops_of(k).value, model::traffic_of(k).value);
      if (k.m > 0) text += fmt::format(R"(, "batch": {}, "m": {}, "n": {}, "k": {})", k.batch, k.m, k.n, k.k);
    } else if (s.op == Opcode::collective) {
      const plan::CollectiveSpec& c = r_.plan.collectives[s.spec];
      const GroupShape& group = r_.plan.classes[s.rank_class].groups[static_cast<std::size_t>(c.axis)];
      text = fmt::format(R"("Collective name": "{}", "bytes": {}, "Group size": {}, "Process Group Name": "{}")", name_of(c.kind), c.bytes.value, group.ranks, name_of(c.axis));
    } else if (s.op == Opcode::copy) {
      text = fmt::format(R"("bytes": {})", r_.plan.copies[s.spec].bytes.value);
    } else {
      const plan::MessageSpec& m = r_.plan.messages[s.spec];
      text = fmt::format(R"("Collective name": "{}", "bytes": {}, "{} Rank": {})", s.op == Opcode::send ? "send" : "recv", m.bytes.value, s.op == Opcode::send ? "Dst" : "Src", pid(m.peer));
    }
    return text;
  }

  void slice(const Slice& s) {
    const plan::Call& call = r_.plan.classes[s.rank_class].program.step[s.call];
    const std::int64_t from = nanoseconds(s.start - origin_), to = nanoseconds(s.end - origin_);
    std::string where;
    if (call.layer >= 0) where += fmt::format(R"("layer": {}, )", call.layer);
    if (call.micro_batch >= 0) where += fmt::format(R"("micro_batch": {}, )", call.micro_batch);
    event(fmt::format(R"({{"ph": "X", "cat": "{}", "name": {}, "pid": {}, "tid": {}, "ts": {}, "dur": {}, "args": {{"device": 0, "stream": {}, "phase": "{}", {}{}}}}})",
                      s.op == Opcode::copy ? "gpu_memcpy" : "kernel", json_text(name(s)), pid(s.rank_class), static_cast<int>(s.stream), microseconds_text(from), microseconds_text(to - from),
                      static_cast<int>(s.stream), name_of(call.phase), where, spec_args(s)));
  }

  /// What the host itself worked on, on a thread of its own: it may reach beyond the step's mark.
  std::string host_work(std::size_t rank_class, const executor::HostSlice& work) const {
    const plan::HostSpec& spec = r_.plan.host_works[work.spec];
    const std::int64_t from = nanoseconds(std::max(work.start, origin_) - origin_), to = nanoseconds(work.end - origin_);
    return fmt::format(R"({{"ph": "X", "cat": "cpu_op", "name": {}, "pid": {}, "tid": {}, "ts": {}, "dur": {}, "args": {{"phase": "{}", "memory_bytes": {}, "read_bytes": {}, "written_bytes": {}}}}})", json_text(spec.name),
                      pid(rank_class), plan::kStreams + 1, microseconds_text(from), microseconds_text(to - from), name_of(r_.plan.classes[rank_class].program.step[work.call].phase), spec.dram.value,
                      spec.disk_read.value, spec.disk_write.value);
  }

  struct Line {
    std::int64_t start;
    std::string text;
  };

  /// Slices in order of time, counters and the hosts' work between them. The two sides of a message start together: that is how they are
  /// matched, so a message whose other side lies outside the traced step gets no arrow.
  void slices_and_flows() {
    std::map<std::tuple<int, int, int, std::int64_t>, const Slice*> open;  // from, to, channel, start
    std::int64_t id = 0;
    std::size_t line = 0;
    for (const Slice& s : slices_) {
      for (; line < lines_.size() && lines_[line].start <= s.start; ++line) event(lines_[line].text);
      slice(s);
      if (s.op != Opcode::send && s.op != Opcode::recv) continue;
      const plan::MessageSpec& m = r_.plan.messages[s.spec];
      const bool sending = s.op == Opcode::send;
      const auto [it, first] = open.try_emplace({sending ? s.rank_class : m.peer, sending ? m.peer : s.rank_class, m.channel, s.start}, &s);
      if (first) continue;
      flow("s", id, sending ? s : *it->second, "");
      flow("f", id++, sending ? *it->second : s, R"(, "bp": "e")");
      open.erase(it);
    }
    for (; line < lines_.size(); ++line) event(lines_[line].text);
  }

  void flow(const char* phase, std::int64_t id, const Slice& at, const char* more) {
    event(fmt::format(R"({{"ph": "{}", "cat": "p2p", "name": "message", "id": {}, "pid": {}, "tid": {}, "ts": {}{}}})", phase, id, pid(at.rank_class), static_cast<int>(at.stream), ts(at.start), more));
  }

  const Scenario& s_;
  const Result& r_;
  std::ostream& out_;
  std::vector<Slice> slices_;
  std::optional<std::size_t> only_;
  std::int64_t origin_ = 0;
  bool first_ = true;
  std::vector<Line> lines_;
  std::map<std::tuple<int, std::uint32_t, std::uint16_t>, std::string> args_;
};

}  // namespace

std::int64_t estimated_trace_bytes(const Result& r) { return 2000 + 300 * static_cast<std::int64_t>(r.trace.size()); }

void write_trace(const Scenario& s, const Result& r, std::ostream& out, std::optional<std::size_t> only) { Writer(s, r, out, only).write(); }

}  // namespace rehearse::report
