#include "sim/report/capacity_writer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "sim/report/format.h"

namespace rehearse::report {
namespace {

using advice::Offer;

std::string time_text(double seconds) {
  const double hours = seconds / 3600;
  if (hours < 1) return fmt::format("{:.1f} min", seconds / 60);
  return hours < 72 ? fmt::format("{:.1f} h", hours) : fmt::format("{:.1f} d", hours / 24);
}

std::vector<std::string> settings_of(const Offer& offer) {
  std::vector<std::string> all{fmt::format("cluster.node={}", offer.machines.node), fmt::format("cluster.nodes={}", offer.machines.nodes), "parallelism.data=auto"};
  all.insert(all.end(), offer.best->change.settings.begin(), offer.best->change.settings.end());
  return all;
}

}  // namespace

std::string write_capacity(const std::vector<Offer>& offers, const advice::Goal& goal, const std::string& file) {
  const bool priced = !goal.gpu_hour.empty();
  std::vector<std::string> head{"machines", "GPUs", "time", "GPU-hours"};
  if (priced) head.emplace_back("cost");
  head.insert(head.end(), {"tokens/s", "MFU", "fastest that fits"});
  Table table(head);
  table.left(head.size() - 1);
  for (const Offer& o : offers) {
    std::vector<std::string> row{fmt::format("{}{} x {}", o.worth ? "* " : "  ", o.machines.nodes, o.machines.node), fmt::format("{}", o.gpus)};
    if (!o.best) {
      row.insert(row.end(), priced ? 5 : 4, "-");
      row.push_back("none: " + o.reason);
    } else {
      row.insert(row.end(), {time_text(o.seconds), count_text(o.gpu_hours)});
      if (priced) row.push_back(o.cost ? count_text(*o.cost) : "-");
      row.insert(row.end(), {number_text(o.best->answer.tokens_per_second), percent_text(o.best->answer.mfu), o.best->change.name});
    }
    table.add(std::move(row));
  }
  std::string text = fmt::format("To train on {} tokens{}{}:\n", count_text(goal.tokens), goal.within ? " within " + time_text(*goal.within) : "", goal.budget ? " for at most " + count_text(*goal.budget) : "");
  text += table.text(2);
  text += wrapped("  ", fmt::format("*: no other line is both sooner and {}. TP tensor, PP pipeline x chunks, DP data, MB micro-batch; own: as the scenario has it; selective, full: recomputation. "
                                     "Restarts, checkpoints and failures are not counted.", priced ? "cheaper" : "fewer GPU-hours"));
  if (const Offer* best = advice::chosen(offers)) {
    const std::string least = fmt::format("{} {}", goal.within || goal.budget ? "Meets the goal with the" : "The", priced ? "least cost" : "fewest GPU-hours");
    text += fmt::format("\n{}: {} x {}, {}, {}. To see it:\n  rehearse run {}", least, best->machines.nodes, best->machines.node,
                        time_text(best->seconds), best->cost ? count_text(*best->cost) : count_text(best->gpu_hours) + " GPU-hours", file);
    for (const std::string& setting : settings_of(*best)) text += fmt::format(" \\\n    --set {}", setting);
    text += "\n";
  } else {
    text += "\nNothing on offer meets the goal.\n";
  }
  return text;
}

std::string write_capacity_json(const std::vector<Offer>& offers, const advice::Goal& goal) {
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
