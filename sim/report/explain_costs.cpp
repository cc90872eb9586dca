// The costs stage: what every distinct piece of work costs alone, and how often a step runs it.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "hwmodels/collective/closed_forms.h"
#include "sim/report/costs.h"
#include "sim/report/explain.h"
#include "sim/report/format.h"
#include "sim/report/text_writer.h"

namespace rehearse::report {
namespace {

/// The operands' format matters to products; the others are as long as their bytes.
std::string shape_text(const model::KernelSpec& k) {
  using model::KernelKind;
  const std::string batch = k.batch > 1 ? fmt::format("{} x ", k.batch) : "";
  switch (k.kind) {
    case KernelKind::gemm:
    case KernelKind::grouped_gemm:
    case KernelKind::native_grouped_gemm: return fmt::format("{}{}x{}x{}{} {}", batch, k.m, k.n, k.k, k.accumulate ? " +=" : "", name_of(k.dtype));
    case KernelKind::attention_forward:
    case KernelKind::attention_backward: return fmt::format("{}{}h/{} {}x{} d{} {}", batch, k.heads, k.kv_heads, k.query_length, k.key_length, k.head_dim, name_of(k.dtype));
    default: return bytes_text(model::traffic_of(k).value);
  }
}

std::string_view word_of(hwmodels::Bound b) {
  switch (b) {
    case hwmodels::Bound::compute: return "compute";
    case hwmodels::Bound::memory: return "memory";
    case hwmodels::Bound::latency: return "latency";
  }
  return "?";
}

/// Indices with a count, dearest in total first; equal ones in the plan's order.
template <typename Time>
std::vector<std::size_t> dearest(const std::vector<std::int64_t>& counts, Time time) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return time(a) * counts[a] > time(b) * counts[b]; });
  return order;
}

std::string kernels_text(const plan::Plan& plan, const executor::CostTable& costs, const Counts& counts, std::size_t rank_class) {
  const auto time = [&](std::size_t k) { return costs.kernel_cost(rank_class, k).duration.count(); };
  Table table({"Kernel", "m x n x k, or bytes", "count", "each", "total", "achieved", "bound"});
  table.left(1).left(6);
  std::int64_t sum = 0;
  bool measured = false;
  for (const std::size_t k : dearest(counts.kernels, time)) {
    measured |= costs.kernel_cost(rank_class, k).measured;
    const model::KernelSpec& spec = plan.kernels[k];
    const double each = to_seconds(costs.kernel_cost(rank_class, k).duration);
    const double flops = model::flops_of(spec).value, bytes = static_cast<double>(model::traffic_of(spec).value);
    const bool products = spec.m > 0 || spec.query_length > 0;
    const std::string achieved = each <= 0 ? "" : products ? si_text(flops / each, "FLOPS") : si_text(bytes / each, "B/s");
    table.add({"  " + spec.name, shape_text(spec), std::to_string(counts.kernels[k]), seconds_text(each), picoseconds_text(time(k) * counts.kernels[k]), achieved,
               std::string(word_of(costs.kernel_cost(rank_class, k).bound)) + (costs.kernel_cost(rank_class, k).measured ? " m" : costs.kernel_cost(rank_class, k).extrapolated ? " *" : "")});
    sum += time(k) * counts.kernels[k];
  }
  if (table.empty()) return {};
  return table.text(0, Table::Names::whole) + fmt::format("  kernels in all: {} (alone; * outside the sizes that the parameters were measured on{})\n", picoseconds_text(sum), measured ? "; m near kernels measured on this GPU" : "");
}

double bus_factor(CollectiveKind kind, int ranks) {
  switch (kind) {
    case CollectiveKind::all_reduce: return hwmodels::all_reduce_bus_factor(ranks);
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_to_all: return hwmodels::shard_bus_factor(ranks);
    default: return 1;
  }
}

std::string collectives_text(const plan::Plan& plan, const executor::CostTable& costs, const Counts& counts, std::size_t rank_class) {
  const auto& mine = costs.collective_costs[rank_class];
  const auto time = [&](std::size_t k) { return mine[k].duration.count(); };
  Table table({"Collective", "group", "bytes", "count", "each", "busbw", "how", "for"});
  table.left(1).left(6).left(7);
  std::int64_t sum = 0;
  for (const std::size_t k : dearest(counts.collectives, time)) {
    const plan::CollectiveSpec& spec = plan.collectives[k];
    const GroupShape& g = plan.classes[rank_class].groups[static_cast<std::size_t>(spec.axis)];
    const double each = to_seconds(mine[k].duration);
    const std::string how = mine[k].algorithm == hwmodels::Algorithm::none ? "" : fmt::format("{}/{}/{}", name_of(mine[k].algorithm), name_of(mine[k].protocol), mine[k].channels);
    table.add({"  " + std::string(name_of(spec.kind)), fmt::format("{} {}{}", name_of(spec.axis), g.ranks, g.nodes > 1 ? fmt::format(" on {}", g.nodes) : ""), bytes_text(spec.bytes.value),
               std::to_string(counts.collectives[k]), seconds_text(each), each > 0 ? si_text(static_cast<double>(spec.bytes.value) / each * bus_factor(spec.kind, g.ranks), "B/s") : "", how, spec.name});
    sum += time(k) * counts.collectives[k];
  }
  if (table.empty()) return {};
  return "\n" + table.text(0) + fmt::format("  collectives in all: {} (alone; how: algorithm/protocol/channels)\n", picoseconds_text(sum));
}

std::string messages_text(const plan::Plan& plan, const executor::CostTable& costs, const Counts& counts, std::size_t rank_class) {
  Table table({"Message", "bytes", "count", "each", "rate"});
  for (std::size_t k = 0; k < plan.messages.size(); ++k) {
    if (counts.messages[k] == 0) continue;
    const plan::MessageSpec& m = plan.messages[k];
    const double each = static_cast<double>(costs.messages[rank_class][k].duration) * 1e-12;
    table.add({fmt::format("  {} with {}", m.channel == 0 ? "activations" : "gradients", plan.classes[m.peer].name), bytes_text(m.bytes.value), std::to_string(counts.messages[k]), seconds_text(each),
               each > 0 ? si_text(static_cast<double>(m.bytes.value) / each, "B/s") : ""});
  }
  return table.empty() ? "" : "\n" + table.text(0);
}

/// Copies between host and GPU, and what they put on the GPU's PCIe link in a step.
std::string copies_text(const Scenario& s, const plan::Plan& plan, const executor::CostTable& costs, const Counts& counts) {
  using Direction = plan::CopySpec::Direction;
  const auto time = [&](std::size_t k) { return costs.copies[k].duration; };
  Table table({"Copy", "bytes", "count", "each", "total", "rate", "host memory"});
  table.left(6);
  std::int64_t sum = 0, up = 0, down = 0, pageable = 0;
  bool together = false;
  for (const std::size_t k : dearest(counts.copies, time)) {
    const plan::CopySpec& c = plan.copies[k];
    const double each = static_cast<double>(time(k)) * 1e-12;
    const bool to_device = c.direction == Direction::host_to_device;
    table.add({to_device ? "  host to GPU" : "  GPU to host", bytes_text(c.bytes.value), std::to_string(counts.copies[k]), seconds_text(each), picoseconds_text(time(k) * counts.copies[k]),
               each > 0 ? si_text(static_cast<double>(c.bytes.value) / each, "B/s") : "",
               std::string(c.pinned ? "pinned" : "pageable") + (c.disk ? ", NVMe" : "") + (c.turns > 1 ? fmt::format(", {} in turn", c.turns) : c.alone ? ", alone" : "")});
    sum += time(k) * counts.copies[k];
    (to_device ? up : down) += c.bytes.value * counts.copies[k];
    together |= !c.alone && c.turns == 1;
    if (!c.pinned) pageable += c.bytes.value * counts.copies[k];
  }
  if (table.empty()) return {};
  const int sharing = std::clamp(s.cluster.node.pcie.gpus_per_switch, 1, s.cluster.gpus_per_node);
  return "\n" + table.text(0) + fmt::format("  copies in all: {}; PCIe of the GPU: {} to it, {} from it, {} of both pageable\n", picoseconds_text(sum), bytes_text(up), bytes_text(down), bytes_text(pageable)) +
         (together && sharing > 1 ? fmt::format("  (while all {} GPUs of a PCIe switch copy)\n", sharing) : "");
}

/// What the CPUs do for this rank: DRAM traffic and disks, with all of a node's ranks at it.
std::string host_works_text(const plan::Plan& plan, const executor::CostTable& costs, const Counts& counts) {
  const auto time = [&](std::size_t k) { return costs.host_works[k]; };
  Table table({"CPU work", "DRAM", "NVMe read", "written", "count", "each", "total"});
  std::int64_t sum = 0, read = 0, written = 0;
  for (const std::size_t k : dearest(counts.host_works, time)) {
    const plan::HostSpec& h = plan.host_works[k];
    table.add({"  " + h.name, bytes_text(h.dram.value), bytes_text(h.disk_read.value), bytes_text(h.disk_write.value), std::to_string(counts.host_works[k]), seconds_text(static_cast<double>(time(k)) * 1e-12),
               picoseconds_text(time(k) * counts.host_works[k])});
    sum += time(k) * counts.host_works[k];
    read += h.disk_read.value * counts.host_works[k];
    written += h.disk_write.value * counts.host_works[k];
  }
  if (table.empty()) return {};
  const std::string disks = read + written > 0 ? fmt::format(";\n  NVMe {} read, {} written", bytes_text(read), bytes_text(written)) : "";
  return "\n" + table.text(0) + fmt::format("  CPU work in all: {} with all of the node's ranks at it{}\n", picoseconds_text(sum), disks);
}

/// What the host thread does in a step, by the blocks that it goes through: launching work, and Python and autograd around it.
std::string host_thread_text(const plan::Plan& plan, std::size_t rank_class) {
  struct Work {
    std::int64_t calls = 0, launches = 0, launching = 0, around = 0;
    std::int64_t total() const { return launching + around; }
  };
  std::map<std::string, Work> by_block;
  for (const plan::Call& call : plan.classes[rank_class].program.step) {
    if (call.first_step_only) continue;
    const plan::Block& block = plan.blocks[call.block];
    Work& w = by_block[std::string(plan::title_of(block))];
    ++w.calls;
    for (const plan::Instruction& i : block.timing) {
      if (i.op == plan::Opcode::host) w.around += i.value;
      else if (i.op < plan::Opcode::host) ++w.launches, w.launching += i.value;
    }
  }
  std::vector<std::pair<std::string, Work>> order;
  Work sum;
  for (const auto& [name, w] : by_block) {
    if (w.total() == 0) continue;
    order.emplace_back(name, w);
    sum.launching += w.launching, sum.around += w.around;
  }
  if (order.empty()) return {};
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.second.total() > b.second.total(); });
  Table table({"Host thread", "launches", "launching", "around them", "count", "each", "total"});
  for (const auto& [name, w] : order)
    table.add({"  " + name, std::to_string(w.launches / w.calls), picoseconds_text(w.launching / w.calls), picoseconds_text(w.around / w.calls), std::to_string(w.calls), picoseconds_text(w.total() / w.calls), picoseconds_text(w.total())});
  return "\n" + table.text(0, Table::Names::whole) +
         fmt::format("  host thread in all: {}, of which launches {} (hidden while the GPU has work; explain\n  --stage timeline shows where not; sources: the framework profile)\n", picoseconds_text(sum.total()), picoseconds_text(sum.launching));
}

}  // namespace

std::string explain_costs(const Scenario& s, const Result& r) {
  const executor::CostTable costs = costs_of(s, r.plan);
  std::string text;
  const std::vector<std::size_t> shown = shown_classes(r, 4);
  for (const std::size_t c : shown) {
    const Counts counts = counts_of(r.plan, c);
    text += fmt::format("{}{} ({}; each piece of work alone on the machine)\n", text.empty() ? "" : "\n", r.plan.classes[c].name, r.plan.classes[c].ranks == 1 ? "one step" : fmt::format("one step of one of {} GPUs", r.plan.classes[c].ranks));
    text += kernels_text(r.plan, costs, counts, c) + collectives_text(r.plan, costs, counts, c) + messages_text(r.plan, costs, counts, c) + copies_text(s, r.plan, costs, counts) + host_works_text(r.plan, costs, counts) + host_thread_text(r.plan, c);
  }
  if (shown.size() < r.classes.size()) text += fmt::format("\n{} more rank classes are left out\n", r.classes.size() - shown.size());
  return text;
}

}  // namespace rehearse::report
