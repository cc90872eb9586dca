#include "sim/report/comparison.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "sim/report/effective_config.h"
#include "sim/report/format.h"
#include "sim/report/json_writer.h"
#include "sim/report/text_writer.h"

namespace rehearse::report {
namespace {

std::string delta_text(double a, double b) {
  if (a == 0 || b == 0) return "";
  return signed_text(100 * (b / a - 1)) + " %";
}

std::string difference_text(double a, double b) {
  const std::string size = seconds_text(std::abs(b - a));
  return (b < a ? "-" : "+") + size;
}

std::string speed_line(const Side& a, const Side& b) {
  const double x = a.result.tokens_per_second, y = b.result.tokens_per_second;
  if (x <= 0 || y <= 0) return "";
  if (x == y) return "A and B are equally fast.\n";
  return fmt::format("{} is {:.2f} times faster than {} (tokens/s){}\n", x > y ? "A" : "B", x > y ? x / y : y / x, x > y ? "B" : "A",
                     a.scenario.gpus() == b.scenario.gpus() ? "." : fmt::format("; per GPU: {} against {}.", number_text(x / a.scenario.gpus()), number_text(y / b.scenario.gpus())));
}

}  // namespace

std::vector<Change> changes_between(const Scenario& a, const Scenario& b) {
  const auto before = flattened(effective_config(a)), after = flattened(effective_config(b));
  std::vector<Change> out;
  const auto value = [](const auto& list, const std::string& key) -> const std::string* {
    for (const auto& [k, v] : list)
      if (k == key) return &v;
    return nullptr;
  };
  for (const auto& [key, old] : before) {
    const std::string* now = value(after, key);
    if (key != "title" && (now == nullptr || *now != old)) out.push_back({key, old, now == nullptr ? "" : *now});
  }
  for (const auto& [key, now] : after)
    if (key != "title" && value(before, key) == nullptr) out.push_back({key, "", now});
  return out;
}

std::string write_comparison(const Side& a, const Side& b) {
  std::string text = wrapped("A  ", a.scenario.file + (a.scenario.title.empty() ? "" : ": " + a.scenario.title));
  text += wrapped("B  ", b.scenario.file + (b.scenario.title.empty() ? "" : ": " + b.scenario.title));
  const std::vector<Change> changes = changes_between(a.scenario, b.scenario);
  Table inputs({"What is different", "A", "B"});
  inputs.left(1).left(2);
  for (const Change& c : changes) inputs.add({"  " + c.key, c.before.empty() ? "-" : c.before, c.after.empty() ? "-" : c.after});
  text += "\n" + (changes.empty() ? (hash_of(a.scenario) == hash_of(b.scenario) ? "The scenarios are the same.\n" : "The scenarios are the same; data files differ.\n") : inputs.text(0));

  Table outcome({"What that does", "A", "B", "B - A"});
  const Result &ra = a.result, &rb = b.result;
  outcome.add({"  fits", ra.fits ? "yes" : "no", rb.fits ? "yes" : "no", ""});
  outcome.add({"  step time", seconds_text(ra.step_time), seconds_text(rb.step_time), delta_text(ra.step_time, rb.step_time)});
  outcome.add({"  tokens/s", number_text(ra.tokens_per_second), number_text(rb.tokens_per_second), delta_text(ra.tokens_per_second, rb.tokens_per_second)});
  const double ga = ra.tokens_per_second / a.scenario.gpus(), gb = rb.tokens_per_second / b.scenario.gpus();
  outcome.add({"  tokens/s per GPU", number_text(ga), number_text(gb), delta_text(ga, gb)});
  const Utilisation ua = utilisation_of(ra), ub = utilisation_of(rb);
  outcome.add({"  MFU, causal", percent_text(ua.mfu), percent_text(ub.mfu), delta_text(ua.mfu, ub.mfu)});
  outcome.add({"  HFU", percent_text(ua.hfu), percent_text(ub.hfu), delta_text(ua.hfu, ub.hfu)});
  const auto memory = [&](const char* what, auto pick) {
    const double x = gib(pick(ra.classes[ra.fullest_class])), y = gib(pick(rb.classes[rb.fullest_class]));
    outcome.add({what, fmt::format("{:.2f} GiB", x), fmt::format("{:.2f} GiB", y), signed_text(y - x, 2) + " GiB"});
  };
  memory("  allocated, fullest GPU", [](const auto& c) { return c.memory.peak_allocated; });
  memory("  reserved, fullest GPU", [](const auto& c) { return c.memory.peak_reserved; });
  memory("  on device, fullest GPU", [](const auto& c) { return c.peak_device(); });
  text += "\n" + outcome.text(0);

  const StepAccount aa = account_of(ra), ab = account_of(rb);
  Table where({"Where the time goes, mean of ranks", "A", "B", "B - A"});
  for (std::size_t k = 0; k < aa.mean.size(); ++k)
    if (aa.mean[k] != 0 || ab.mean[k] != 0)
      where.add({"  " + label_of(static_cast<executor::Cause>(k), aa.mean[k] != 0 ? ra : rb), seconds_text(aa.mean[k]), seconds_text(ab.mean[k]), difference_text(aa.mean[k], ab.mean[k])});
  if (!where.empty()) text += "\n" + where.text(0);
  return text + "\n" + speed_line(a, b);
}

std::string write_comparison_json(const Side& a, const Side& b) {
  using Json = nlohmann::json;
  Json changes = Json::array();
  for (const Change& c : changes_between(a.scenario, b.scenario)) changes.push_back({{"key", c.key}, {"a", c.before}, {"b", c.after}});
  const double x = a.result.tokens_per_second, y = b.result.tokens_per_second;
  Json out = {{"schema_version", kSchemaVersion},
              {"changes", changes},
              {"speed_ratio_b_over_a", x > 0 && y > 0 ? Json(y / x) : Json(nullptr)},
              {"a", Json::parse(write_json(a.scenario, a.result))},
              {"b", Json::parse(write_json(b.scenario, b.result))}};
  return out.dump(2) + "\n";
}

}  // namespace rehearse::report
