// Reads measurements. Strict: whatever the tables of operations.h do not know is refused. Leaves out writing them.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "calibrate/json_place.h"
#include "calibrate/measurements.h"
#include "calibrate/operations.h"
#include "sim/core/error.h"

namespace rehearse::calibrate {
namespace {

using OrderedJson = nlohmann::ordered_json;

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
    const OrderedJson root = parse();
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
    each(root, "skipped", false, [&](const OrderedJson& item) { out.skipped.push_back(skipped(item)); });
    each(root, "series", true, [&](const OrderedJson& item) { out.series.push_back(series(item)); });
    if (!mistakes_.empty()) throw ConfigError(std::move(mistakes_));
    return out;
  }

 private:
  OrderedJson parse() {
    // The parser keeps the last of two equal keys; we want to hear of it, and where.
    struct Open {
      std::set<std::string> keys;
      std::variant<std::string, std::size_t> at;
    };
    using Event = OrderedJson::parse_event_t;
    std::vector<Open> open;
    std::optional<JsonPath> repeated;
    const auto watch = [&](int, Event event, OrderedJson& value) {
      if (event == Event::object_end || event == Event::array_end) open.pop_back();
      if (event == Event::object_end || event == Event::array_end || event == Event::value)
        if (std::size_t* index = open.empty() ? nullptr : std::get_if<std::size_t>(&open.back().at)) ++*index;
      if (event == Event::object_start) open.push_back({{}, std::string()});
      if (event == Event::array_start) open.push_back({{}, std::size_t{0}});
      if (event != Event::key) return true;
      open.back().at = value.get<std::string>();
      if (!open.back().keys.insert(value.get<std::string>()).second && !repeated) {
        repeated.emplace();
        for (const Open& o : open) repeated->push_back(o.at);
      }
      return true;
    };
    try {
      OrderedJson root = OrderedJson::parse(text_, watch);
      if (repeated) {
        path_ = *repeated;
        wrong("", "stands twice in one object", "Keep one of the two");
        path_.clear();
      }
      return root;
    } catch (const OrderedJson::parse_error& e) {
      const Place at = place_of_byte(text_, e.byte > 0 ? e.byte - 1 : 0);
      std::string why = e.what();
      if (const std::size_t colon = why.find("syntax error"); colon != std::string::npos) why = why.substr(colon);
      throw ConfigError(Diagnostic{{file_, at.line, at.column}, "", "is not JSON (" + why + ")",
                                   "A file that was cut off can be measured again: the probe goes on where it stopped", ""});
    } catch (const OrderedJson::out_of_range& e) {  // a number beyond all doubles: the parser names it, but not its place
      const std::string why = e.what();
      const std::size_t quote = why.find('\'');
      const std::string number = quote == std::string::npos ? std::string() : why.substr(quote + 1, why.rfind('\'') - quote - 1);
      const std::size_t byte = text_.find(number);
      const Place at = place_of_byte(text_, byte == std::string::npos ? 0 : byte);
      throw ConfigError(Diagnostic{{file_, at.line, at.column}, "", "the number " + number + " is too large", "Times are seconds: measure it again", ""});
    }
  }

  void wrong(const std::string& key, const std::string& problem, const std::string& fix) {
    JsonPath path = path_;
    if (!key.empty()) path.emplace_back(key);
    const Place value = place_of(text_, path), holder = place_of(text_, path_);
    const Place at = value.line > 0 ? value : holder;
    mistakes_.push_back({{file_, at.line, at.column}, calibrate::to_string(path), problem, fix, ""});
  }

  bool object(const OrderedJson& value, const std::vector<std::string>& known) {
    if (!value.is_object()) {
      wrong("", "an object was expected", "Write { ... }");
      return false;
    }
    for (const auto& [key, ignored] : value.items())
      if (std::find(known.begin(), known.end(), key) == known.end()) unknown(key, known);
    return true;
  }
  void unknown(const std::string& key, const std::vector<std::string>& known) {
    const auto near = nearest_name(key, known);
    wrong(key, "unknown key", near ? "Did you mean " + *near + "?" : "Known here: " + listed(known));
  }

  const OrderedJson* find(const OrderedJson& holder, const std::string& key, bool must) {
    const auto at = holder.find(key);
    if (at != holder.end()) return &*at;
    if (must) wrong(key, "is missing", "Add it");
    return nullptr;
  }

  std::string word(const OrderedJson& holder, const std::string& key, bool must) {
    const OrderedJson* value = find(holder, key, must);
    if (value == nullptr) return {};
    if (value->is_string()) return value->get<std::string>();
    wrong(key, "a text was expected", "Write it in quotes");
    return {};
  }

  std::vector<std::string> words(const OrderedJson& holder, const std::string& key) {
    std::vector<std::string> out;
    each(holder, key, false, [&](const OrderedJson& item) {
      if (item.is_string()) out.push_back(item.get<std::string>());
      else wrong("", "a text was expected", "Write it in quotes");
    });
    return out;
  }

  template <typename Act>
  void each(const OrderedJson& holder, const std::string& key, bool must, Act act) {
    const OrderedJson* list = find(holder, key, must);
    if (list == nullptr) return;
    if (!list->is_array()) return wrong(key, "a list was expected", "Write [ ... ]");
    path_.emplace_back(key);
    for (std::size_t i = 0; i < list->size(); ++i) {
      path_.emplace_back(i);
      act((*list)[i]);
      path_.pop_back();
    }
    path_.pop_back();
  }

  std::optional<Fact> fact(const OrderedJson& value, const Key& key) {
    switch (key.kind) {
      case FactKind::flag: if (value.is_boolean()) return Fact(value.get<bool>()); break;
      case FactKind::integer:
        if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT64_MAX}) break;
        if (value.is_number_integer() && value.get<std::int64_t>() >= 0) return Fact(value.get<std::int64_t>());
        break;
      case FactKind::number: if (value.is_number()) return Fact(value.get<double>()); break;
      case FactKind::text:
        if (!value.is_string()) break;
        if (!key.words.empty() && std::find(key.words.begin(), key.words.end(), value.get<std::string>()) == key.words.end()) {
          wrong(key.name, "\"" + value.get<std::string>() + "\" is not one of its words", "Known: " + listed(key.words));
          return std::nullopt;
        }
        return Fact(value.get<std::string>());
      case FactKind::lines:
        if (value.is_array() && std::all_of(value.begin(), value.end(), [](const OrderedJson& v) { return v.is_string(); }))
          return Fact(value.get<std::vector<std::string>>());
        break;
    }
    const std::string what = key.kind == FactKind::integer ? "an integer that is not negative"
                             : key.kind == FactKind::flag ? "true or false"
                             : key.kind == FactKind::lines ? "a list of texts"
                             : key.kind == FactKind::text ? "a text" : "a number";
    wrong(key.name, what + " was expected", key.name + ": " + key.meaning);
    return std::nullopt;
  }

  Facts facts(const OrderedJson& holder, const std::string& name, const std::vector<Key>& keys, bool complete) {
    Facts out;
    const OrderedJson* object_value = find(holder, name, complete);
    if (object_value == nullptr) return out;
    path_.emplace_back(name);
    std::vector<std::string> known;
    for (const Key& key : keys) known.push_back(key.name);
    if (object(*object_value, known)) {
      for (const Key& key : keys) {
        const auto at = object_value->find(key.name);
        if (at != object_value->end()) {
          if (auto value = fact(*at, key)) out.emplace(key.name, std::move(*value));
        } else if (complete && !key.fallback) {
          wrong(key.name, "is missing", key.name + ": " + key.meaning);
        }
      }
    }
    path_.pop_back();
    return out;
  }

  /// Fills operation and parameters of a Series or a Skipped.
  template <typename Item>
  void what_of(const OrderedJson& value, Item& out) {
    out.operation = word(value, "operation", true);
    const Operation* operation = find_operation(out.operation);
    if (operation != nullptr) {
      out.parameters = facts(value, "parameters", operation->keys, true);
    } else if (value.contains("operation") && value["operation"].is_string()) {
      std::vector<std::string> known;
      for (const Operation& o : operations()) known.push_back(o.name);
      const auto near = nearest_name(out.operation, known);
      wrong("operation", "\"" + out.operation + "\" is no operation", near ? "Did you mean " + *near + "?" : "Known: " + listed(known));
    }
  }

  Skipped skipped(const OrderedJson& value) {
    Skipped out;
    if (!object(value, kSkippedKeys)) return out;
    what_of(value, out);
    out.reason = word(value, "reason", true);
    return out;
  }

  std::optional<double> number(const OrderedJson& holder, const std::string& key, bool must, double least) {
    const OrderedJson* value = find(holder, key, must);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number() || !std::isfinite(value->get<double>())) {
      wrong(key, "a number was expected", "Write it in seconds or as a fraction, as its name says");
      return std::nullopt;
    }
    if (value->get<double>() < least) {
      wrong(key, "is too small (" + value->dump() + ")", "Times are above 0, deviations not below 0");
      return std::nullopt;
    }
    return value->get<double>();
  }
  std::int64_t count(const OrderedJson& holder, const std::string& key, bool must) {
    const OrderedJson* value = find(holder, key, must);
    if (value == nullptr) return 1;
    if (value->is_number_integer() && value->get<std::int64_t>() >= 1) return value->get<std::int64_t>();
    wrong(key, "an integer of 1 or more was expected", "Count the samples that were timed");
    return 1;
  }

  Series series(const OrderedJson& value) {
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
    if (const OrderedJson* converged = find(value, "converged", false)) {
      if (converged->is_boolean()) out.converged = converged->get<bool>();
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
