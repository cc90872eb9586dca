// Reads measurements. Strict: whatever the tables of operations.h do not know is refused. Leaves out writing them.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

#include "calibrate/json.h"
#include "calibrate/measurements.h"
#include "calibrate/operations.h"
#include "sim/core/error.h"
#include "sim/core/suggestion.h"

namespace rehearse::calibrate {
namespace {

constexpr std::size_t kLargestFile = std::size_t{256} << 20;

const std::vector<std::string> kTopKeys = {"schema", "source", "machine", "software", "options", "warnings", "skipped", "series"};
const std::vector<std::string> kSeriesKeys = {"operation", "parameters", "samples", "repeats", "median_s", "mean_s", "min_s",
                                              "max_s", "stddev_s", "relative_error", "drift", "converged", "sm_clock_mhz",
                                              "throttle", "note"};
const std::vector<std::string> kSkippedKeys = {"operation", "parameters", "reason"};

std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names)
    if (!name.empty()) out += (out.empty() ? "" : ", ") + name;
  return out;
}

/// Walks a parsed file and collects every mistake.
class Reader {
 public:
  Reader(const std::string& text, const std::string& file) : text_(text), file_(file) {}

  Measurements read() {
    const JsonValue root = parse();
    within_ = {&root};
    Measurements out;
    if (!object(root, kTopKeys)) throw ConfigError(std::move(mistakes_));
    const std::string schema = word(root, "schema", true);
    if (!schema.empty() && schema != kSchema)
      wrong("schema", "\"" + schema + "\" is not a format that this version reads", "It reads \"" + std::string(kSchema) + "\"");
    out.source = word(root, "source", false);
    out.machine = facts(root, "machine", machine_keys(), false);
    out.software = facts(root, "software", software_keys(), false);
    out.options = facts(root, "options", option_keys(), false);
    out.warnings = words(root, "warnings");
    each(root, "skipped", false, [&](const JsonValue& item) { out.skipped.push_back(skipped(item)); });
    each(root, "series", true, [&](const JsonValue& item) { out.series.push_back(series(item)); });
    if (!mistakes_.empty()) throw ConfigError(std::move(mistakes_));
    return out;
  }

 private:
  JsonValue parse() {
    try {
      ParsedJson parsed = parse_json(text_);
      if (!parsed.repeated.empty())
        mistakes_.push_back({{file_, parsed.repeated_at.line, parsed.repeated_at.column}, calibrate::to_string(parsed.repeated), "stands twice in one object", "Keep one of the two", ""});
      return std::move(parsed.root);
    } catch (const JsonError& e) {
      throw ConfigError(Diagnostic{{file_, e.at.line, e.at.column}, "", std::string("is not JSON (") + e.what() + ")",
                                   "A file that was cut off can be measured again: the probe goes on where it stopped", ""});
    }
  }

  void wrong(const std::string& key, const std::string& problem, const std::string& fix) {
    JsonPath path = path_;
    if (!key.empty()) path.emplace_back(key);
    const JsonValue& holder = *within_.back();
    const JsonValue* value = key.empty() ? &holder : holder.find(key);
    const Place at = value != nullptr ? value->at : holder.at;
    mistakes_.push_back({{file_, at.line, at.column}, calibrate::to_string(path), problem, fix, ""});
  }

  bool object(const JsonValue& value, const std::vector<std::string>& known) {
    const auto* members = value.get<JsonValue::Members>();
    if (members == nullptr) {
      wrong("", "an object was expected", "Write { ... }");
      return false;
    }
    for (const auto& [key, ignored] : *members)
      if (std::find(known.begin(), known.end(), key) == known.end()) unknown(key, known);
    return true;
  }
  void unknown(const std::string& key, const std::vector<std::string>& known) {
    const std::string meant = did_you_mean(key, known);
    wrong(key, "unknown key", meant.empty() ? "Known here: " + listed(known) : meant);
  }

  const JsonValue* find(const JsonValue& holder, const std::string& key, bool must) {
    if (const JsonValue* at = holder.find(key)) return at;
    if (must) wrong(key, "is missing", "Add it");
    return nullptr;
  }

  std::string word(const JsonValue& holder, const std::string& key, bool must) {
    const JsonValue* value = find(holder, key, must);
    if (value == nullptr) return {};
    if (const auto* text = value->get<std::string>()) return *text;
    wrong(key, "a text was expected", "Write it in quotes");
    return {};
  }

  std::vector<std::string> words(const JsonValue& holder, const std::string& key) {
    std::vector<std::string> out;
    each(holder, key, false, [&](const JsonValue& item) {
      if (const auto* text = item.get<std::string>()) out.push_back(*text);
      else wrong("", "a text was expected", "Write it in quotes");
    });
    return out;
  }

  template <typename Act>
  void each(const JsonValue& holder, const std::string& key, bool must, Act act) {
    const JsonValue* list = find(holder, key, must);
    if (list == nullptr) return;
    const auto* items = list->get<JsonValue::Items>();
    if (items == nullptr) return wrong(key, "a list was expected", "Write [ ... ]");
    path_.emplace_back(key);
    for (std::size_t i = 0; i < items->size(); ++i) {
      path_.emplace_back(i);
      within_.push_back(&(*items)[i]);
      act((*items)[i]);
      within_.pop_back();
      path_.pop_back();
    }
    path_.pop_back();
  }

  std::optional<Fact> fact(const JsonValue& value, const Key& key) {
    switch (key.kind) {
      case FactKind::flag: if (const bool* v = value.get<bool>()) return Fact(*v); break;
      case FactKind::integer: if (const auto* v = value.get<std::int64_t>(); v != nullptr && *v >= 0) return Fact(*v); break;
      case FactKind::number: if (value.is_number()) return Fact(value.number()); break;
      case FactKind::text: {
        const auto* v = value.get<std::string>();
        if (v == nullptr) break;
        if (!key.words.empty() && std::find(key.words.begin(), key.words.end(), *v) == key.words.end()) {
          wrong(key.name, "\"" + *v + "\" is not one of its words", "Known: " + listed(key.words));
          return std::nullopt;
        }
        return Fact(*v);
      }
      case FactKind::lines: {
        const auto* items = value.get<JsonValue::Items>();
        if (items == nullptr || !std::all_of(items->begin(), items->end(), [](const JsonValue& v) { return v.get<std::string>() != nullptr; })) break;
        std::vector<std::string> lines;
        for (const JsonValue& v : *items) lines.push_back(*v.get<std::string>());
        return Fact(std::move(lines));
      }
    }
    const std::string what = key.kind == FactKind::integer ? "an integer that is not negative"
                             : key.kind == FactKind::flag ? "true or false"
                             : key.kind == FactKind::lines ? "a list of texts"
                             : key.kind == FactKind::text ? "a text" : "a number";
    wrong(key.name, what + " was expected", key.name + ": " + key.meaning);
    return std::nullopt;
  }

  Facts facts(const JsonValue& holder, const std::string& name, const std::vector<Key>& keys, bool complete) {
    Facts out;
    const JsonValue* object_value = find(holder, name, complete);
    if (object_value == nullptr) return out;
    path_.emplace_back(name);
    within_.push_back(object_value);
    std::vector<std::string> known;
    for (const Key& key : keys) known.push_back(key.name);
    if (object(*object_value, known)) {
      for (const Key& key : keys) {
        if (const JsonValue* at = object_value->find(key.name)) {
          if (auto value = fact(*at, key)) out.emplace(key.name, std::move(*value));
        } else if (complete && !key.fallback) {
          wrong(key.name, "is missing", key.name + ": " + key.meaning);
        }
      }
    }
    within_.pop_back();
    path_.pop_back();
    return out;
  }

  /// Fills operation and parameters of a Series or a Skipped.
  template <typename Item>
  void what_of(const JsonValue& value, Item& out) {
    out.operation = word(value, "operation", true);
    const Operation* operation = find_operation(out.operation);
    if (operation != nullptr) {
      out.parameters = facts(value, "parameters", operation->keys, true);
    } else if (const JsonValue* name = value.find("operation"); name != nullptr && name->get<std::string>() != nullptr) {
      std::vector<std::string> known;
      for (const Operation& o : operations()) known.push_back(o.name);
      const std::string meant = did_you_mean(out.operation, known);
      wrong("operation", "\"" + out.operation + "\" is no operation", meant.empty() ? "Known: " + listed(known) : meant);
    }
  }

  Skipped skipped(const JsonValue& value) {
    Skipped out;
    if (!object(value, kSkippedKeys)) return out;
    what_of(value, out);
    out.reason = word(value, "reason", true);
    return out;
  }

  std::optional<double> number(const JsonValue& holder, const std::string& key, bool must, double least) {
    const JsonValue* value = find(holder, key, must);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) {
      wrong(key, "a number was expected", "Write it in seconds or as a fraction, as its name says");
      return std::nullopt;
    }
    if (value->number() < least) {
      const auto* whole = value->get<std::int64_t>();
      wrong(key, "is too small (" + (whole != nullptr ? std::to_string(*whole) : json_number(value->number())) + ")", "Times are above 0, deviations not below 0");
      return std::nullopt;
    }
    return value->number();
  }
  std::int64_t count(const JsonValue& holder, const std::string& key, bool must) {
    const JsonValue* value = find(holder, key, must);
    if (value == nullptr) return 1;
    if (const auto* n = value->get<std::int64_t>(); n != nullptr && *n >= 1) return *n;
    wrong(key, "an integer of 1 or more was expected", "Count the samples that were timed");
    return 1;
  }

  Series series(const JsonValue& value) {
    Series out;
    if (!object(value, kSeriesKeys)) return out;
    what_of(value, out);
    constexpr double kPositive = 1e-15;
    const std::size_t before = mistakes_.size();
    out.samples = count(value, "samples", true);
    out.repeats = count(value, "repeats", false);
    out.median_s = number(value, "median_s", true, kPositive).value_or(0);
    out.mean_s = number(value, "mean_s", false, kPositive);
    out.min_s = number(value, "min_s", false, kPositive);
    out.max_s = number(value, "max_s", false, kPositive);
    out.stddev_s = number(value, "stddev_s", false, 0);
    out.relative_error = number(value, "relative_error", false, 0);
    out.drift = number(value, "drift", false, -1);
    out.sm_clock_mhz = number(value, "sm_clock_mhz", false, 0);
    if (const JsonValue* converged = find(value, "converged", false)) {
      if (const bool* v = converged->get<bool>()) out.converged = *v;
      else wrong("converged", "true or false was expected", "Write true or false");
    }
    out.throttle = words(value, "throttle");
    out.note = word(value, "note", false);
    if (mistakes_.size() == before) {
      if (out.min_s && *out.min_s > out.median_s) wrong("min_s", "is above median_s", "One of the two is of another series");
      if (out.max_s && *out.max_s < out.median_s) wrong("max_s", "is below median_s", "One of the two is of another series");
    }
    return out;
  }

  const std::string& text_;
  const std::string& file_;
  JsonPath path_;
  std::vector<const JsonValue*> within_;  // objects of the path
  std::vector<Diagnostic> mistakes_;
};

ConfigError cannot(const std::string& path, const std::string& problem, const std::string& fix) {
  return ConfigError(Diagnostic{{path, 0, 0}, "", problem, fix, ""});
}

}  // namespace

Measurements measurements_from_json(const std::string& text, const std::string& file) { return Reader(text, file).read(); }

Measurements read_measurements(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw cannot(path, std::string("cannot be read (") + std::strerror(errno) + ")", "Name a file that rehearse-probe or an import wrote");
  std::string text;
  char chunk[1 << 16];
  while (in.read(chunk, sizeof chunk), in.gcount() > 0) {
    text.append(chunk, static_cast<std::size_t>(in.gcount()));
    if (text.size() > kLargestFile) throw cannot(path, "is larger than 256 MiB", "Split it, or name another file");
  }
  if (in.bad()) throw cannot(path, "cannot be read", "Name a file, not a folder");
  return measurements_from_json(text, path);
}

}  // namespace rehearse::calibrate
