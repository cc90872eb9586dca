// Command-line overrides: "--set a.b[2].c=VALUE" (layers.h).
#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "sim/config/layers.h"

namespace rehearse::config {

namespace {

class Override {
 public:
  Override(std::string key, Value value, Place origin)
      : key_(std::move(key)), value_(std::move(value)), origin_(std::move(origin)) {}

  /// `at` with what `rest` names replaced.
  Value set(const Value& at, std::string_view rest) const {
    if (rest.empty()) return value_;
    if (rest.front() == '[') return set_item(at, rest);
    if (at.is_scalar() && at.path() == "model") return set(as_preset(at), rest);
    if (!at.is_map() && !at.is_null()) refuse(at, fmt::format("{} is not a map here", at.path()), "");

    const std::string name = next_name(at, rest);
    if (name.empty()) refuse(at, "an empty name in the key", "Write --set part.part=value");
    std::string_view after = rest.substr(name.size());
    if (after.starts_with('.')) {
      after.remove_prefix(1);
      if (after.empty()) refuse(at, "the key ends with a dot", "Write --set part.part=value");
    }
    std::vector<Value::Entry> entries = at.entries();
    for (Value::Entry& entry : entries)
      if (entry.key == name) {
        entry = {name, origin_, set(entry.value, after)};
        return Value::map(std::move(entries), at.place(), at.path());
      }
    const std::string path = child_path(at.path(), name);
    entries.push_back({name, origin_, set(Value::null(origin_, path), after)});
    return Value::map(std::move(entries), at.place(), at.path());
  }

 private:
  Value set_item(const Value& at, std::string_view rest) const {
    const std::size_t close = rest.find(']');
    std::size_t index = 0;
    const char* begin = rest.data() + 1;
    const char* end = rest.data() + (close == std::string_view::npos ? rest.size() : close);
    const auto [stop, error] = std::from_chars(begin, end, index);
    if (close == std::string_view::npos || error != std::errc{} || stop != end)
      refuse(at, "'[' needs a number and ']'", "Items count from 0: stages[0]");
    if (!at.is_list()) refuse(at, fmt::format("{} is not a list here", at.path()), "");
    if (index >= at.items().size())
      refuse(at, fmt::format("the list has {} items (they count from 0)", at.items().size()), "");
    std::string_view after = rest.substr(close + 1);
    if (after.starts_with('.')) after.remove_prefix(1);
    std::vector<Value> items = at.items();
    items[index] = set(items[index], after);
    return Value::list(std::move(items), at.place(), at.path());
  }

  /// The longest existing key that `rest` starts with (a sweep's keys hold dots), else all before a dot or
  /// '['.
  static std::string next_name(const Value& at, std::string_view rest) {
    std::string best;
    for (const Value::Entry& entry : at.entries()) {
      const std::string& key = entry.key;
      if (key.size() <= best.size() || !rest.starts_with(key)) continue;
      if (rest.size() == key.size() || rest[key.size()] == '.' || rest[key.size()] == '[') best = key;
    }
    return best.empty() ? std::string(rest.substr(0, rest.find_first_of(".["))) : best;
  }

  [[noreturn]] void refuse(const Value& at, std::string problem, std::string fix) const {
    if (fix.empty() && !at.at().file.empty()) fix = "It was set at " + to_string(at.at());
    throw ConfigError(Diagnostic{origin_.location(), key_, std::move(problem), std::move(fix), ""});
  }

  std::string key_;
  Value value_;
  Place origin_;
};

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(' ') - first + 1));
}

}  // namespace

Value apply_override(const Value& root, std::string_view assignment, std::string_view option) {
  const std::size_t equals = assignment.find('=');
  const std::string key = trimmed(assignment.substr(0, equals));
  const std::string origin = std::string(option) + " " + key;
  const Place place{std::make_shared<const SourceText>(origin, std::string(assignment)), 0, 0};
  if (equals == std::string_view::npos || key.empty())
    throw ConfigError(Diagnostic{place.location(), "", "needs a key and a value",
                                 "Write --set training.micro_batch_size=4", ""});
  const int depth =
      static_cast<int>(std::count_if(key.begin(), key.end(), [](char c) { return c == '.' || c == '['; }));
  if (depth >= kMaxNesting)
    throw ConfigError(
        Diagnostic{place.location(), "", fmt::format("nested deeper than {} levels", kMaxNesting), "", ""});
  Value value = parse_fragment(std::string(assignment.substr(equals + 1)), origin, key);
  return Override(key, std::move(value), place).set(root, key);
}

Value apply_overrides(Value root, const std::vector<std::string>& assignments, std::string_view option) {
  std::vector<Diagnostic> diagnostics;
  for (const std::string& assignment : assignments) {
    try {
      root = apply_override(root, assignment, option);
    } catch (const ConfigError& error) {
      diagnostics.insert(diagnostics.end(), error.diagnostics().begin(), error.diagnostics().end());
    }
  }
  if (!diagnostics.empty()) throw ConfigError(std::move(diagnostics));
  return root;
}

}  // namespace rehearse::config
