#include "strategies/pipeline/drawing.h"

#include <fmt/format.h>

#include <algorithm>

namespace rehearse::strategies {
namespace {

char letter_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
    case ActionKind::overlapped:
      return 'F';
    case ActionKind::backward:
      return 'B';
    case ActionKind::backward_input:
      return 'I';
    default:
      return 'W';
  }
}

}  // namespace

std::string draw(const PipelineProgram& program, const UnitTimes& times, int max_columns) {
  // The order's own bubble: messages that take no time do not stand in each other's way either, as they would on a rank's one
  // communicator.
  PipelineProgram alone = program;
  alone.channels = Channels::per_direction;
  const UnitTimeline timeline = run_in_unit_time(alone, times);
  std::size_t chunks = 1;
  for (const auto& places : program.placement) chunks = std::max(chunks, places.size());
  const std::size_t digits = std::to_string(std::max(0, program.micro_batches - 1)).size();
  const std::size_t width = digits + (chunks > 1 ? 2 : 1);
  const auto cell = [&](char kind, int chunk, int mb) {
    const std::string name =
        chunks > 1 ? fmt::format("{}{}", static_cast<char>(chunk < 26 ? 'a' + chunk : '?'), kind)
                   : std::string(1, kind);
    return fmt::format("{:<{}}", fmt::format("{}{}", name, mb), width);
  };
  const int columns = max_columns > 0 ? std::min(max_columns, timeline.length) : timeline.length;
  const std::size_t rank_digits = std::to_string(program.stages() - 1).size();

  std::string out;
  for (int r = 0; r < program.stages(); ++r) {
    std::vector<std::string> row(static_cast<std::size_t>(timeline.length), std::string(width, '.'));
    for (const UnitSpan& span : timeline.ranks[r]) {
      const Action& a = program.ranks[r][span.action];
      for (int t = span.begin; t < span.end; ++t) row[t] = std::string(width, '-');
      if (span.end > span.begin) row[span.begin] = cell(letter_of(a.kind), a.chunk, a.micro_batch);
      if (a.kind == ActionKind::overlapped && span.end > span.begin + 1)
        row[span.begin + 1] = cell('&', a.under_chunk, a.under_micro_batch);
    }
    out += fmt::format("rank {:>{}} |", r, rank_digits);
    for (int t = 0; t < columns; ++t) out += (t > 0 ? " " : "") + row[t];
    out += columns < timeline.length ? " ...\n" : "|\n";
  }
  for (const std::string& place : timeline.stuck) out += "stuck: " + place + "\n";
  out += fmt::format("{} units, bubble {:.1f} % (forward {}, input gradient {}, weight gradient {})\n",
                     timeline.length, 100 * timeline.bubble_fraction(), times.forward, times.backward_input,
                     times.backward_weight);
  return out;
}

}  // namespace rehearse::strategies
