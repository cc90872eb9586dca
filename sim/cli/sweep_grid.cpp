#include "sim/cli/sweep_grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "sim/config/document.h"

namespace rehearse::cli {
namespace {

/// A value as one line of YAML.
std::string one_line(const config::Value& v) {
  if (v.is_null()) return "null";
  if (v.is_list()) {
    std::string text;
    for (const config::Value& item : v.items()) text += (text.empty() ? "" : ", ") + one_line(item);
    return "[" + text + "]";
  }
  if (v.is_map()) {
    std::string text;
    for (const config::Value::Entry& e : v.entries()) text += (text.empty() ? "" : ", ") + e.key + ": " + one_line(e.value);
    return "{" + text + "}";
  }
  std::string text = config::to_yaml(v);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::vector<std::string> texts(const config::Value& list) {
  std::vector<std::string> out;
  for (const config::Value& item : list.items()) out.push_back(one_line(item));
  return out;
}

Axis parse_over(const std::string& text) {
  const std::string origin = "--over " + text;
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
    throw ConfigError(Diagnostic{{origin, 0, 0}, "", "needs a key and values", "Write --over parallelism.tensor=1,2,4", ""});
  const std::string key = text.substr(0, equals), values = text.substr(equals + 1);
  const config::Value list = config::parse_fragment(values.front() == '[' && values.back() == ']' ? values : "[" + values + "]", origin, key);
  if (list.items().empty()) throw ConfigError(Diagnostic{{origin, 0, 0}, "", "needs at least one value", "Write --over parallelism.tensor=1,2,4", ""});
  return {key, texts(list)};
}

}  // namespace

Grid::Grid(const config::Value& scenario, const std::vector<std::string>& over) {
  if (const config::Value* sweep = scenario.find("sweep")) {
    for (const config::Value::Entry& e : sweep->entries()) {
      if (!e.value.is_list() || e.value.items().empty()) throw ConfigError(e.value.diagnostic("a swept key needs a list of values", "Write [value, value, ...]"));
      axes_.push_back({e.key, texts(e.value)});
    }
  }
  std::set<std::string> given;
  for (const std::string& text : over) {
    Axis axis = parse_over(text);
    if (!given.insert(axis.key).second) throw ConfigError(Diagnostic{{"--over " + text, 0, 0}, axis.key, "is varied twice", "Write all its values in one --over " + axis.key + "=value,value", ""});
    const auto same = std::find_if(axes_.begin(), axes_.end(), [&](const Axis& a) { return a.key == axis.key; });
    if (same == axes_.end()) axes_.push_back(std::move(axis));
    else *same = std::move(axis);
  }
  if (axes_.empty()) throw ConfigError(Diagnostic{{}, "sweep", "there is nothing to vary", "Write --over key=value,value, or a map `sweep:` in the scenario", ""});
  for (const Axis& axis : axes_) {
    const auto n = static_cast<std::int64_t>(axis.values.size());
    if (size_ > kMostPoints / n) throw ConfigError(Diagnostic{{}, "sweep", fmt::format("more than {} combinations", kMostPoints), "Vary fewer keys at once", ""});
    size_ *= n;
  }
}

std::vector<std::string> Grid::values(std::int64_t point) const {
  std::vector<std::string> out(axes_.size());
  for (std::size_t a = axes_.size(); a-- > 0;) {
    const auto n = static_cast<std::int64_t>(axes_[a].values.size());
    out[a] = axes_[a].values[static_cast<std::size_t>(point % n)];
    point /= n;
  }
  return out;
}

std::vector<std::string> Grid::overrides(std::int64_t point) const {
  std::vector<std::string> out = values(point);
  for (std::size_t a = 0; a < axes_.size(); ++a) out[a] = axes_[a].key + "=" + out[a];
  return out;
}

}  // namespace rehearse::cli
