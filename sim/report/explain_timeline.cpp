// The timeline stage: each class's streams over the step.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "sim/report/explain.h"
#include "sim/report/format.h"
#include "sim/report/text_writer.h"

namespace rehearse::report {
namespace {

constexpr int kColumns = 70;

/// One character per time slot of a step: how much of it these pieces of work fill: '#' nearly all, '+' half, '.' little.
template <typename Slices, typename Chosen>
std::string strip(const Slices& slices, std::int64_t length, Chosen chosen) {
  std::vector<double> busy(kColumns, 0);
  for (const auto& s : slices) {
    if (!chosen(s) || length <= 0) continue;
    const double scale = static_cast<double>(kColumns) / static_cast<double>(length);
    const double a = static_cast<double>(s.start) * scale, b = static_cast<double>(s.end) * scale;
    for (int c = std::max(0, static_cast<int>(a)); c < kColumns && c < b; ++c) busy[static_cast<std::size_t>(c)] += std::min<double>(c + 1, b) - std::max<double>(c, a);
  }
  std::string text;
  for (const double b : busy) text += b >= 0.9 ? '#' : b >= 0.4 ? '+' : b > 0.001 ? '.' : ' ';
  return text;
}

std::string row(std::string_view name, const std::string& strip, std::int64_t busy, std::int64_t step) {
  return fmt::format("  {:<20}|{}|{:>5.1f}%\n", name, strip, 100.0 * static_cast<double>(busy) / static_cast<double>(std::max<std::int64_t>(1, step)));
}

std::string phases(const Result& r, std::size_t rank_class) {
  struct Sum {
    std::int64_t first = INT64_MAX, last = 0, busy = 0;
  };
  std::map<plan::Phase, Sum> sums;
  for (const executor::Slice& s : r.trace) {
    if (s.rank_class != rank_class) continue;
    Sum& sum = sums[r.plan.classes[rank_class].program.step[s.call].phase];
    sum.first = std::min(sum.first, s.start);
    sum.last = std::max(sum.last, s.end);
    if (s.stream == plan::Stream::compute) sum.busy += s.end - s.start;
  }
  Table table({"Phase", "first work", "last work", "compute stream busy"});
  for (const auto& [phase, sum] : sums) table.add({"  " + std::string(name_of(phase)), picoseconds_text(sum.first), picoseconds_text(sum.last), picoseconds_text(sum.busy)});
  return table.empty() ? "" : table.text(0);
}

}  // namespace

std::string explain_timeline(const Scenario&, const Result& r) {
  if (!r.deadlock.empty()) return "the program stands still:\n" + r.deadlock;
  std::string text = fmt::format("step {}; {} instructions executed; # busy, + half, . little\n", seconds_text(r.step_time), r.instructions);
  const std::vector<std::size_t> shown = shown_classes(r, 8);
  for (const std::size_t c : shown) {
    const executor::ClassTiming& t = r.classes[c].timing;
    text += fmt::format("\n{} ({})\n", r.classes[c].name, counted(r.classes[c].ranks, "GPU"));
    for (int k = 0; k < plan::kStreams; ++k) {
      const std::int64_t busy = t.busy[static_cast<std::size_t>(k)];
      if (busy == 0) continue;
      const auto mine = [&](const executor::Slice& s) { return s.rank_class == c && static_cast<int>(s.stream) == k; };
      text += row(name_of(static_cast<plan::Stream>(k)), strip(r.trace, t.step, mine), busy, t.step);
    }
    std::int64_t on_host = 0;
    for (const executor::HostSlice& work : t.host_works) on_host += work.end - work.start;
    if (on_host > 0) text += row("optimizer on the CPU", strip(t.host_works, t.step, [](const executor::HostSlice&) { return true; }), on_host, t.step);
    text += phases(r, c);
    Table table({"Compute stream", "time", ""});
    for (int k = 0; k < executor::kCauses; ++k)
      if (const std::int64_t ps = t.time[static_cast<std::size_t>(k)]; ps != 0)
        table.add({"  " + label_of(static_cast<executor::Cause>(k), r), picoseconds_text(ps), percent_text(static_cast<double>(ps) / static_cast<double>(t.step))});
    text += table.text(0);
  }
  if (shown.size() < r.classes.size()) text += fmt::format("\n{} more rank classes are left out; --trace has all\n", r.classes.size() - shown.size());
  return text;
}

}  // namespace rehearse::report
