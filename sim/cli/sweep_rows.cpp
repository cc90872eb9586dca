#include "sim/cli/sweep_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "sim/report/accounts.h"
#include "sim/report/effective_config.h"
#include "sim/report/format.h"
#include "sim/report/json_text.h"
#include "sim/report/text_writer.h"

namespace rehearse::cli {
namespace {

struct Column {
  const char* name;
  std::string (*text)(const Row&);  // "" when there is no value
  bool quoted;                      // a text in JSON
};

std::string real(const Row& r, double v) { return r.step_time > 0 ? fmt::format("{}", v) : ""; }
std::string whole(const Row& r, std::int64_t v) { return r.peak_device > 0 ? std::to_string(v) : ""; }

const Column kColumns[] = {
    {"outcome", [](const Row& r) { return std::string(name_of(r.outcome)); }, true},
    {"gpus", [](const Row& r) { return r.gpus > 0 ? std::to_string(r.gpus) : std::string(); }, false},
    {"step_time_s", [](const Row& r) { return real(r, r.step_time); }, false},
    {"tokens_per_s", [](const Row& r) { return real(r, r.tokens_per_second); }, false},
    {"tokens_per_s_per_gpu", [](const Row& r) { return real(r, r.tokens_per_second_per_gpu()); }, false},
    {"samples_per_s", [](const Row& r) { return real(r, r.samples_per_second); }, false},
    {"mfu", [](const Row& r) { return real(r, r.mfu); }, false},
    {"hfu", [](const Row& r) { return real(r, r.hfu); }, false},
    {"peak_allocated_bytes", [](const Row& r) { return whole(r, r.peak_allocated); }, false},
    {"peak_reserved_bytes", [](const Row& r) { return whole(r, r.peak_reserved); }, false},
    {"peak_device_bytes", [](const Row& r) { return whole(r, r.peak_device); }, false},
    {"headroom_bytes", [](const Row& r) { return whole(r, r.headroom); }, false},
    {"scenario_hash", [](const Row& r) { return r.hash; }, true},
    {"reason", [](const Row& r) { return r.reason; }, true},
};

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

/// YAML's numbers, true and false are JSON's; anything else is a text.
std::string json_value(const std::string& text) {
  const bool number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos && (text.size() == 1 || text[0] != '0') && text.size() < 16;
  return number || text == "true" || text == "false" ? text : report::json_text(text);
}

/// The last part of a key where that is enough to tell the axes apart.
std::vector<std::string> short_names(const Grid& grid) {
  std::map<std::string, int> count;
  const auto tail = [](const std::string& key) { return key.substr(key.rfind('.') + 1); };
  for (const Axis& axis : grid.axes()) ++count[tail(axis.key)];
  std::vector<std::string> out;
  for (const Axis& axis : grid.axes()) out.push_back(count[tail(axis.key)] == 1 ? tail(axis.key) : axis.key);
  return out;
}

}  // namespace

std::string_view name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::fits: return "fits";
    case Outcome::does_not_fit: return "does_not_fit";
    case Outcome::invalid: return "invalid";
    case Outcome::failed: return "failed";
    case Outcome::not_simulated: return "not_simulated";
  }
  return "?";
}

Row row_of(const scenario::Scenario& s, const scenario::Result& r) {
  Row row;
  row.outcome = !r.deadlock.empty() ? Outcome::failed : r.fits ? Outcome::fits : Outcome::does_not_fit;
  if (row.outcome != Outcome::fits) row.reason = report::verdict_line(s, r);
  row.hash = report::hash_of(s);
  row.gpus = s.gpus();
  row.step_time = r.step_time;
  row.tokens_per_second = r.tokens_per_second;
  row.samples_per_second = r.samples_per_second;
  const report::Utilisation u = report::utilisation_of(r);
  row.mfu = u.mfu;
  row.hfu = u.hfu;
  const scenario::ClassResult& c = r.classes[r.fullest_class];
  row.peak_allocated = c.memory.peak_allocated.value;
  row.peak_reserved = c.memory.peak_reserved.value;
  row.peak_device = c.peak_device().value;
  row.headroom = report::headroom_of(s, r).value;
  return row;
}

std::string to_csv(const Grid& grid, const std::vector<Row>& rows) {
  std::string text;
  for (const Axis& axis : grid.axes()) text += csv_cell(axis.key) + ",";
  for (const Column& c : kColumns) text += std::string(&c == kColumns ? "" : ",") + c.name;
  text += "\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const std::string& value : grid.values(static_cast<std::int64_t>(i))) text += csv_cell(value) + ",";
    for (const Column& c : kColumns) text += (&c == kColumns ? "" : ",") + csv_cell(c.text(rows[i]));
    text += "\n";
  }
  return text;
}

std::string to_json_lines(const Grid& grid, const std::vector<Row>& rows) {
  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::vector<std::string> values = grid.values(static_cast<std::int64_t>(i));
    text += "{\"point\": " + std::to_string(i) + ", \"settings\": {";
    for (std::size_t a = 0; a < values.size(); ++a) text += (a == 0 ? "" : ", ") + report::json_text(grid.axes()[a].key) + ": " + json_value(values[a]);
    text += "}";
    for (const Column& c : kColumns) {
      const std::string value = c.text(rows[i]);
      text += fmt::format(", \"{}\": {}", c.name, value.empty() ? "null" : c.quoted ? report::json_text(value) : value);
    }
    text += "}\n";
  }
  return text;
}

std::string to_ranking(const Grid& grid, const std::vector<Row>& rows, std::size_t top) {
  std::vector<std::size_t> best;
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i].outcome == Outcome::fits) best.push_back(i);
  const std::size_t fit = best.size();
  std::stable_sort(best.begin(), best.end(), [&](std::size_t a, std::size_t b) { return rows[a].tokens_per_second > rows[b].tokens_per_second; });
  if (best.size() > top) best.resize(top);
  std::vector<std::string> head{"Rank"};
  for (const std::string& name : short_names(grid)) head.push_back(name);
  // Where all points have as many GPUs, tokens/s say it all.
  const bool per_gpu = std::any_of(rows.begin(), rows.end(), [&](const Row& r) { return r.gpus > 0 && r.gpus != rows[best.empty() ? 0 : best[0]].gpus; });
  head.insert(head.end(), {"step time", "tokens/s"});
  if (per_gpu) head.emplace_back("per GPU");
  head.insert(head.end(), {"MFU", "GiB used", "GiB left", "of best"});
  report::Table table(head);
  for (std::size_t a = 0; a < grid.axes().size(); ++a) table.left(a + 1);
  for (std::size_t k = 0; k < best.size(); ++k) {
    const Row& r = rows[best[k]];
    std::vector<std::string> cells{fmt::format("{:>4}", k + 1)};
    for (const std::string& value : grid.values(static_cast<std::int64_t>(best[k]))) cells.push_back(value);
    cells.insert(cells.end(), {report::seconds_text(r.step_time), report::number_text(r.tokens_per_second)});
    if (per_gpu) cells.push_back(report::number_text(r.tokens_per_second_per_gpu()));
    cells.insert(cells.end(), {report::percent_text(r.mfu), report::gib_text(Bytes{r.peak_device}), report::gib_text(Bytes{r.headroom}),
                               report::percent_text(r.tokens_per_second / rows[best[0]].tokens_per_second)});
    table.add(std::move(cells));
  }
  std::string text = table.empty() ? "" : table.text(0) + "\n";
  std::map<Outcome, std::size_t> outcomes;
  std::map<std::string, std::size_t> reasons;
  for (const Row& r : rows) {
    ++outcomes[r.outcome];
    if (r.outcome == Outcome::invalid || r.outcome == Outcome::failed) ++reasons[r.reason];
  }
  text += fmt::format("{}: {} fit, {} do not fit, {} are impossible{}{}\n", report::counted(static_cast<std::int64_t>(rows.size()), "combination"), fit, outcomes[Outcome::does_not_fit], outcomes[Outcome::invalid],
                      outcomes[Outcome::failed] > 0 ? fmt::format(", {} FAILED (a bug of ours)", outcomes[Outcome::failed]) : "",
                      outcomes[Outcome::not_simulated] > 0 ? fmt::format(", {} not simulated", outcomes[Outcome::not_simulated]) : "");
  std::vector<std::pair<std::string, std::size_t>> common(reasons.begin(), reasons.end());
  std::stable_sort(common.begin(), common.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  for (std::size_t i = 0; i < common.size() && i < 8; ++i) text += report::wrapped(fmt::format("  {:>5} x  ", common[i].second), common[i].first);
  if (common.size() > 8) text += fmt::format("  ... and {} more reasons\n", common.size() - 8);
  return text;
}

}  // namespace rehearse::cli
