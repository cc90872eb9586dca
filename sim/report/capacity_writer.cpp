#include "sim/report/capacity_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/report/error_bands.h"
#include "sim/report/format.h"
#include "strategies/data/catalog.h"

namespace rehearse::report {
namespace {

using advice::Offer;

std::string time_text(double seconds) {
  const double hours = seconds / 3600;
  if (hours < 1) return fmt::format("{:.1f} min", seconds / 60);
  return hours < 72 ? fmt::format("{:.1f} h", hours) : fmt::format("{:.1f} d", hours / 24);
}

std::vector<std::string> settings_of(const Offer& offer) {
  std::vector<std::string> all = offer.settings;
  all.insert(all.end(), offer.best->change.settings.begin(), offer.best->change.settings.end());
  return all;
}

Band band_of(const Offer& offer, const scenario::Scenario& job) { return stored_band(job.profile.name, offer.architecture); }

/// What no arrangement changes: a plan for another of these is another plan.
std::string kept_text(const scenario::Scenario& job) {
  const strategies::Strategy& s = job.strategy;
  std::string kind = "ddp";   // of a scenario of one GPU: what it becomes on several
  for (const auto& entry : strategies::data_parallel_kinds().entries())
    if (entry.value == s.data_parallel.kind && s.data_parallel.kind != strategies::DataParallelKind::none) kind = entry.name;
  std::string text = fmt::format("Everywhere as in the scenario: {}, data parallelism {}, sequence {}, global batch {}", job.profile.name, kind, s.training.sequence_length, s.training.global_batch_size);
  if (s.parallelism.degrees.context > 1) text += fmt::format(", context {}", s.parallelism.degrees.context);
  if (s.parallelism.degrees.expert > 1) text += fmt::format(", expert {}", s.parallelism.degrees.expert);
  return text + ".";
}

/// The goal may be missed by a prediction's usual error.
std::string doubt_text(const Offer& offer, const advice::Goal& goal, const scenario::Scenario& job) {
  const double slower = 1 + band_of(offer, job).step_time.value_or(0);
  const bool late = goal.within && offer.seconds * slower > *goal.within, dear = goal.budget && offer.cost && *offer.cost * slower > *goal.budget;
  if (!late && !dear) return {};
  return fmt::format("  At the slow end of the expected error it takes {}{}: beyond the goal.\n", time_text(offer.seconds * slower), offer.cost ? fmt::format(" and {}", count_text(*offer.cost * slower)) : "");
}

}  // namespace

std::string write_capacity(const std::vector<Offer>& offers, const advice::Goal& goal, const scenario::Scenario& job) {
  const bool priced = !goal.gpu_hour.empty();
  std::vector<std::string> head{"machines", "GPUs", "time", "+-", "GPU-hours"};
  if (priced) head.emplace_back("cost");
  head.insert(head.end(), {"tokens/s", "MFU", "fastest that fits"});
  Table table(head);
  table.left(head.size() - 1);
  for (const Offer& o : offers) {
    std::vector<std::string> row{fmt::format("{}{} x {}", o.worth ? "* " : "  ", o.machines.nodes, o.machines.node), fmt::format("{}", o.gpus)};
    if (!o.best) {
      row.insert(row.end(), priced ? 6 : 5, "-");
      row.push_back("none: " + o.reason);
    } else {
      const auto error = band_of(o, job).step_time;
      row.insert(row.end(), {time_text(o.seconds), error ? fmt::format("{:.0f} %", *error * 100) : "?", count_text(o.gpu_hours)});
      if (priced) row.push_back(o.cost ? count_text(*o.cost) : "-");
      row.insert(row.end(), {number_text(o.best->answer.tokens_per_second), percent_text(o.best->answer.mfu), o.best->change.name});
    }
    table.add(std::move(row));
  }
  const bool hybrid = std::any_of(offers.begin(), offers.end(), [](const Offer& o) { return o.best && o.best->change.name.find('/') != std::string::npos; });
  std::string text = fmt::format("To train on {} tokens{}{}:\n", count_text(goal.tokens), goal.within ? " within " + time_text(*goal.within) : "", goal.budget ? " for at most " + count_text(*goal.budget) : "");
  text += table.text(2);
  text += wrapped("  ", fmt::format("*: no other line is both sooner and {}. +-: expected error of the time, which held 80 % of measured runs. TP tensor, PP pipeline x chunks, DP data{}, MB micro-batch; own: as the scenario has it; selective, full: recomputation. "
                                     "Restarts, checkpoints and failures are not counted.", priced ? "cheaper" : "fewer GPU-hours", hybrid ? " (/64: so many share the parameters)" : ""));
  text += wrapped("  ", kept_text(job));
  if (const Offer* best = advice::chosen(offers)) {
    const std::string least = fmt::format("{} {}", goal.within || goal.budget ? "Meets the goal with the" : "The", priced ? "least cost" : "fewest GPU-hours");
    text += fmt::format("\n{}: {} x {}, {}, {}. To see it:\n  rehearse run {}", least, best->machines.nodes, best->machines.node,
                        time_text(best->seconds), best->cost ? count_text(*best->cost) : count_text(best->gpu_hours) + " GPU-hours", job.file);
    for (const std::string& setting : settings_of(*best)) {
      const char* quote = setting.find(' ') == std::string::npos ? "" : "'";
      text += fmt::format(" \\\n    --set {}{}{}", quote, setting, quote);
    }
    text += "\n" + doubt_text(*best, goal, job);
  } else {
    text += "\nNothing on offer meets the goal.\n";
  }
  return text;
}

std::string write_capacity_json(const std::vector<Offer>& offers, const advice::Goal& goal, const scenario::Scenario& job) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  const Offer* best = advice::chosen(offers);
  for (const Offer& o : offers) {
    nlohmann::ordered_json j{{"node", o.machines.node}, {"nodes", o.machines.nodes}, {"gpus", o.gpus}, {"arrangements_tried", o.tried}, {"fits", o.best.has_value()}};
    if (o.best) {
      j["seconds"] = o.seconds;
      j["gpu_hours"] = o.gpu_hours;
      if (o.cost) j["cost"] = *o.cost;
      j["tokens_per_s"] = o.best->answer.tokens_per_second;
      j["mfu"] = o.best->answer.mfu;
      const Band band = band_of(o, job);
      j["error_band"] = {{"step_time", band.step_time ? nlohmann::ordered_json(*band.step_time) : nlohmann::ordered_json(nullptr)}, {"basis", band.basis}};
      j["arrangement"] = o.best->change.name;
      j["settings"] = settings_of(o);
      j["meets_goal"] = o.meets;
      j["worth_having"] = o.worth;
      j["chosen"] = &o == best;
    } else {
      j["reason"] = o.reason;
    }
    list.push_back(std::move(j));
  }
  nlohmann::ordered_json out{{"schema_version", 1}, {"tokens", goal.tokens}};
  if (goal.within) out["within_s"] = *goal.within;
  if (goal.budget) out["budget"] = *goal.budget;
  out["offers"] = std::move(list);
  return out.dump(2) + "\n";
}

}  // namespace rehearse::report
