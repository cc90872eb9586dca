// The plan stage: what the host thread of each rank class would issue.
#include <fmt/format.h>

#include <set>

#include "sim/report/explain.h"
#include "sim/report/format.h"

namespace rehearse::report {
namespace {

using plan::Opcode;

/// "layers 0-31": consecutive numbers as ranges.
std::string ranges(const std::vector<std::int64_t>& numbers) {
  std::string out;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t j = i + 1;
    const std::int64_t step = j < numbers.size() && numbers[j] == numbers[i] - 1 ? -1 : 1;
    while (j < numbers.size() && numbers[j] == numbers[j - 1] + step) ++j;
    out += (out.empty() ? "" : ", ") + (j - i > 1 ? fmt::format("{}..{}", numbers[i], numbers[j - 1]) : std::to_string(numbers[i]));
    i = j;
  }
  return out;
}

/// Calls that repeat: `period` calls, `times` over, from `at`.
struct Cycle {
  std::size_t period = 1, times = 1;
};

/// The cycle that covers most calls from `at` on; the micro-batch stays the same, layers may change.
Cycle longest_cycle(const std::vector<plan::Call>& calls, std::size_t at) {
  constexpr std::size_t kLongestPeriod = 12;
  Cycle best;
  for (std::size_t period = 1; period <= kLongestPeriod; ++period) {
    std::size_t end = at + period;
    while (end < calls.size() && calls[end].block == calls[end - period].block && calls[end].micro_batch == calls[end - period].micro_batch) ++end;
    const std::size_t times = end > calls.size() ? 0 : (end - at) / period;
    if (times > 1 && period * times > best.period * best.times) best = {period, times};
  }
  return best;
}

std::string call_list(const plan::Plan& plan, const std::vector<plan::Call>& calls) {
  std::string text;
  constexpr std::size_t kMostCycles = 60;
  std::size_t cycles = 0, i = 0;
  for (; i < calls.size() && cycles < kMostCycles; ++cycles) {
    const Cycle cycle = longest_cycle(calls, i);
    for (std::size_t k = 0; k < cycle.period; ++k) {
      const plan::Call& call = calls[i + k];
      std::vector<std::int64_t> layers;
      for (std::size_t n = 0; n < cycle.times; ++n)
        if (const plan::Call& c = calls[i + k + n * cycle.period]; c.layer >= 0) layers.push_back(c.layer);
      const std::string times = cycle.times == 1 ? "      " : fmt::format("{:>4} x", cycle.times);
      const char* bracket = cycle.times == 1 || cycle.period == 1 ? " " : k == 0 ? "/" : k + 1 == cycle.period ? "\\" : "|";
      const std::string where = call.micro_batch >= 0 ? fmt::format("mb {:<4}", call.micro_batch) : std::string(7, ' ');
      text += shortened(fmt::format("    {} {} {} {:<18} block {:<3} {}{}", k == 0 ? times : "      ", bracket, where, plan::name_of(call.phase), call.block, plan.blocks[call.block].name,
                                    layers.empty() ? "" : " (layer " + ranges(layers) + ")"), kWidth) + "\n";
    }
    i += cycle.period * cycle.times;
  }
  if (i < calls.size()) text += fmt::format("    ... {} more calls\n", calls.size() - i);
  return text;
}

std::string slot_text(const plan::Block& b, const plan::Instruction& i) {
  constexpr std::string_view kFrames[] = {"", "below.", "above.", "unit."};
  const bool named = i.frame == plan::Frame::own && i.index < b.slot_names.size() && !b.slot_names[i.index].empty();
  return fmt::format("{}{}", kFrames[static_cast<std::size_t>(i.frame)], named ? b.slot_names[i.index] : fmt::format("[{}]", i.index));
}

/// "compute, tensor" of bits.
std::string streams_text(std::uint32_t bits) {
  std::string out;
  for (int k = 0; k < plan::kStreams; ++k)
    if (bits >> k & 1u) out += (out.empty() ? "" : ", ") + std::string(name_of(static_cast<plan::Stream>(k)));
  return out;
}

std::string timing_text(const plan::Plan& plan, const plan::Block& b, const plan::Instruction& i) {
  const std::string on = i.stream == plan::Stream::compute ? "" : fmt::format(" on {}", name_of(i.stream));
  const std::string sync = std::string(i.flags & plan::kAfterCompute ? ", after compute" : "") + (i.flags & plan::kComputeWaits ? ", compute waits" : "");
  switch (i.op) {
    case Opcode::kernel: return fmt::format("kernel      {} ({}){}", plan.kernels[i.index].name, name_of(plan.kernels[i.index].kind), on);
    case Opcode::collective: {
      const plan::CollectiveSpec& c = plan.collectives[i.index];
      return fmt::format("collective  {}: {} of {} over {}{}{}", c.name, name_of(c.kind), bytes_text(c.bytes.value), name_of(c.axis), on, sync);
    }
    case Opcode::send:
    case Opcode::recv: {
      const plan::MessageSpec& m = plan.messages[i.index];
      return fmt::format("{}        {} {} {}{}{}", i.op == Opcode::send ? "send" : "recv", bytes_text(m.bytes.value), i.op == Opcode::send ? "to" : "from", plan.classes[m.peer].name, on, sync);
    }
    case Opcode::copy: return fmt::format("copy        {}{}{}", bytes_text(plan.copies[i.index].bytes.value), on, sync);
    case Opcode::host_work: return "host work   " + plan.host_works[i.index].name;
    case Opcode::host: return "host        " + picoseconds_text(i.value);
    case Opcode::record: return fmt::format("record      event {}{}", slot_text(b, i), on);
    case Opcode::wait: return fmt::format("wait        event {}{}", slot_text(b, i), on);
    case Opcode::host_wait: return "host waits  event " + slot_text(b, i);
    case Opcode::host_sync: return i.index == 0 ? "host waits  for everything" : "host waits  for " + streams_text(i.index);
    default: return "?";
  }
}

std::string memory_line(const plan::Block& b, const plan::Instruction& i) {
  switch (i.op) {
    case Opcode::alloc: return fmt::format("alloc       {} ({}) {}", bytes_text(i.value), name_of(static_cast<plan::Category>(i.flags)), slot_text(b, i));
    case Opcode::alloc_once: return fmt::format("alloc once  {} ({}) [{}]", bytes_text(i.value), name_of(static_cast<plan::Category>(i.flags)), i.index);
    case Opcode::free: return "free        " + slot_text(b, i);
    case Opcode::move: return fmt::format("move        slot {} -> {}", i.value, slot_text(b, i));
    default: return fmt::format("mark        {} used on {}", slot_text(b, i), name_of(i.stream));
  }
}

/// Lines with equal neighbours folded: "x 32".
std::string folded(const std::vector<std::string>& lines) {
  std::string text;
  for (std::size_t i = 0; i < lines.size();) {
    std::size_t j = i;
    while (j < lines.size() && lines[j] == lines[i]) ++j;
    text += shortened("    " + lines[i] + (j - i > 1 ? fmt::format(" x {}", j - i) : ""), kWidth) + "\n";
    i = j;
  }
  return text;
}

}  // namespace

std::string explain_plan(const Scenario&, const Result& r) {
  const plan::Plan& plan = r.plan;
  std::string text = wrapped("", fmt::format("{} rank classes, {} blocks, {} distinct kernels, {} collectives, {} messages; {} instructions per step", plan.classes.size(), plan.blocks.size(),
                                             plan.kernels.size(), plan.collectives.size(), plan.messages.size(), plan.instructions_per_step()));
  std::set<std::uint32_t> used;
  for (const plan::RankClass& c : plan.classes) {
    text += fmt::format("\n{}: {}, shown for rank {}; {} slots\n  setup\n{}  step\n{}", c.name, counted(c.ranks, "GPU"), c.representative, c.program.slots, call_list(plan, c.program.setup),
                        call_list(plan, c.program.step));
    for (const auto* calls : {&c.program.setup, &c.program.step})
      for (const plan::Call& call : *calls) used.insert(call.block);
  }
  for (const std::uint32_t id : used) {
    const plan::Block& b = plan.blocks[id];
    std::vector<std::string> timing, memory;
    for (const plan::Instruction& i : b.timing) timing.push_back(timing_text(plan, b, i));
    for (const plan::Instruction& i : b.memory) memory.push_back(memory_line(b, i));
    text += fmt::format("\nblock {}: {} ({} timing and {} memory instructions, {} slots)\n", id, b.name, b.timing.size(), b.memory.size(), b.slots);
    text += folded(timing) + folded(memory);
  }
  return text;
}

}  // namespace rehearse::report
