// The memory part of the text answer.
#include <algorithm>

#include <fmt/format.h>

#include "sim/model/describe.h"
#include "sim/report/format.h"
#include "sim/report/text_writer.h"

namespace rehearse::report {
namespace {

/// Eleven columns have to fit.
const char* short_name(plan::Category c) {
  switch (c) {
    case plan::Category::parameter: return "params";
    case plan::Category::gradient: return "grads";
    case plan::Category::optimizer: return "optim";
    case plan::Category::activation: return "activ";
    case plan::Category::temporary: return "temp";
    case plan::Category::communication: return "comm";
    case plan::Category::workspace: return "work";
    case plan::Category::count_: break;
  }
  return "?";
}

}  // namespace

std::string peak_moment_text(const Result& r, std::size_t i) {
  const executor::ClassMemory& m = r.classes[i].memory;
  if (m.peak_call < 0) return "setup (parameters and buffers)";
  return fmt::format("step {}, {}", m.peak_step + 1, moment_text(r.plan, i, m.peak_call));
}

std::string memory_text(const Scenario& s, const Result& r) {
  const std::vector<std::size_t> shown = shown_classes(r, 10);
  Table sizes({"Memory (GiB)", "GPUs", "parameters", "allocated", "reserved", "on device", "has"});
  for (const std::size_t i : shown) {
    const scenario::ClassResult& c = r.classes[i];
    sizes.add({"  " + c.name, std::to_string(c.ranks), model::human_count(c.parameters), gib_text(c.memory.peak_allocated), gib_text(c.memory.peak_reserved), gib_text(c.peak_device()),
               gib_text(s.cluster.gpu.memory)});
  }
  std::vector<std::string> head{"At the peak (GiB)"};
  std::vector<std::size_t> used;
  for (std::size_t k = 0; k < plan::kCategories; ++k) {
    bool any = false;
    for (const auto& c : r.classes) any = any || c.memory.at_peak[k] > 0;
    if (!any) continue;
    used.push_back(k);
    head.emplace_back(short_name(static_cast<plan::Category>(k)));
  }
  const bool unified = std::any_of(r.classes.begin(), r.classes.end(), [](const auto& c) { return c.unified > Bytes{0}; });
  head.insert(head.end(), {"context", "NCCL", "other"});
  if (unified) head.emplace_back("paged");
  Table parts(head);
  for (const std::size_t i : shown) {
    const scenario::ClassResult& c = r.classes[i];
    std::vector<std::string> row{"  " + c.name};
    for (const std::size_t k : used) row.push_back(gib_text(Bytes{c.memory.at_peak[k]}));
    row.insert(row.end(), {gib_text(c.context), gib_text(c.communicators), gib_text(c.misc)});
    if (unified) row.push_back(gib_text(c.unified));
    parts.add(std::move(row));
  }
  std::string text = "\n" + sizes.text(0) + parts.text(0);
  if (shown.size() < r.classes.size()) text += fmt::format("  ({} more like these: --json has them all)\n", r.classes.size() - shown.size());
  if (r.host.ram() > Bytes{0}) text += fmt::format("  host memory of a node: {} GiB of {} ({} GiB pinned)\n", gib_text(r.host.ram()), gib_text(s.cluster.node.cpu.memory), gib_text(r.host.pinned));
  if (r.host.nvme > Bytes{0}) text += fmt::format("  NVMe of a node: {} GiB of {}\n", gib_text(r.host.nvme), gib_text(s.cluster.node.nvme.capacity));
  text += wrapped("  peak of '" + r.classes[r.fullest_class].name + "': ", peak_moment_text(r, r.fullest_class));
  return text;
}

}  // namespace rehearse::report
