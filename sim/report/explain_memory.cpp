// The memory stage: the ledger of each class over the step.
#include <fmt/format.h>

#include <algorithm>

#include "sim/report/explain.h"
#include "sim/report/format.h"
#include "sim/report/text_writer.h"

namespace rehearse::report {
namespace {

constexpr std::size_t kRows = 40;

/// The highest allocation of each run of calls with the same phase, layer run and micro-batch, at most kRows of them.
std::string curve(const Result& r, std::size_t c) {
  const executor::ClassMemory& m = r.classes[c].memory;
  const std::vector<plan::Call>& calls = r.plan.classes[c].program.step;
  std::int64_t top = 1;
  for (const executor::MemorySample& s : m.timeline) top = std::max({top, s.allocated, s.reserved});
  const std::size_t group = std::max<std::size_t>(1, (m.timeline.size() + kRows - 1) / kRows);
  std::string text = fmt::format("  {:<44}{:>10}{:>10}\n", "highest from this call on (GiB)", "allocated", "reserved");
  for (std::size_t i = 0; i < m.timeline.size(); i += group) {
    const std::size_t end = std::min(m.timeline.size(), i + group);
    const auto highest = std::max_element(m.timeline.begin() + static_cast<std::ptrdiff_t>(i), m.timeline.begin() + static_cast<std::ptrdiff_t>(end),
                                          [](const auto& a, const auto& b) { return a.allocated < b.allocated; });
    const plan::Call& call = calls[m.timeline[i].call];
    std::string where = call.micro_batch >= 0 ? fmt::format("mb {}, ", call.micro_batch) : "";
    if (call.layer >= 0) where += fmt::format("layer {}, ", call.layer);
    where += name_of(call.phase);
    const auto bar = static_cast<std::size_t>(30.0 * static_cast<double>(highest->allocated) / static_cast<double>(top));
    text += fmt::format("  {:<44}{:>10}{:>10}  {}\n", shortened(where, 43), gib_text(Bytes{highest->allocated}), gib_text(Bytes{m.timeline[end - 1].reserved}), std::string(bar, '#'));
  }
  return text;
}

std::string live(const Result& r, std::size_t c) {
  const executor::ClassMemory& m = r.classes[c].memory;
  Table table({"Live at the peak (1 MiB and more)", "category", "tensors", "each", "total"});
  table.left(1);
  // Equal tensors of many layers are one row.
  struct Row {
    std::string name;
    plan::Category category;
    std::int64_t bytes, count;
  };
  std::vector<Row> rows;
  for (const executor::LiveTensor& t : m.live_at_peak) {
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.name == t.name && row.category == t.category && row.bytes == t.bytes; });
    if (same != rows.end()) ++same->count;
    else rows.push_back({t.name, t.category, t.bytes, 1});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.bytes * a.count > b.bytes * b.count; });
  for (std::size_t i = 0; i < rows.size() && i < kRows; ++i)
    table.add({"  " + rows[i].name, std::string(name_of(rows[i].category)), std::to_string(rows[i].count), bytes_text(rows[i].bytes), bytes_text(rows[i].bytes * rows[i].count)});
  std::string text = table.empty() ? "" : table.text(0);
  if (rows.size() > kRows) text += fmt::format("  ... {} more kinds of tensors\n", rows.size() - kRows);
  return text;
}

}  // namespace

std::string explain_memory(const Scenario& s, const Result& r) {
  std::string text = verdict_line(s, r) + "\n" + memory_text(s, r);
  const std::vector<std::size_t> shown = shown_classes(r, 4);
  for (const std::size_t c : shown) {
    const executor::ClassMemory& m = r.classes[c].memory;
    text += "\n" + wrapped("", fmt::format("{}: peak {} GiB allocated in {}; {} allocator operations", r.classes[c].name, gib_text(m.peak_allocated), moment_text(r.plan, c, m.peak_call), m.operations));
    text += curve(r, c) + live(r, c);
  }
  if (shown.size() < r.classes.size()) text += fmt::format("\n{} more rank classes are left out\n", r.classes.size() - shown.size());
  return text;
}

}  // namespace rehearse::report
