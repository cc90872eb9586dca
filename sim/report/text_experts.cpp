// Expert-parallel ranks that routing makes unlike: the part of the text answer that shows how far apart they are.
#include <fmt/format.h>

#include <algorithm>

#include "sim/report/format.h"
#include "sim/report/text_writer.h"

namespace rehearse::report {

double expert_imbalance(const plan::Plan& plan) {
  double most = 1;
  for (const plan::RankClass& c : plan.classes) most = std::max(most, c.expert_load);
  return most;
}

std::string experts_text(const Result& r) {
  if (expert_imbalance(r.plan) == 1) return {};
  Table table({"Expert ranks", "GPUs", "slots / mean", "computes", "waits and exchanges", "allocated (GiB)"});
  const std::vector<std::size_t> shown = shown_classes(r, 12);
  for (const std::size_t i : shown) {
    const scenario::ClassResult& c = r.classes[i];
    const double busy = to_seconds(Duration{c.timing.busy[0]}), step = to_seconds(Duration{c.timing.step});
    table.add({"  " + c.name, std::to_string(c.ranks), fmt::format("{:.3f}", r.plan.classes[i].expert_load), seconds_text(busy), seconds_text(step - busy), gib_text(c.memory.peak_allocated)});
  }
  std::string text = "\n" + table.text(0);
  if (shown.size() < r.classes.size()) text += fmt::format("  ({} more like these: --json has them all)\n", r.classes.size() - shown.size());
  return text + fmt::format("  The fullest rank gets {:.3f} times the mean of its stage over a step.\n", expert_imbalance(r.plan));
}

}  // namespace rehearse::report
