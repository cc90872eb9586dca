// Reads "facts" of the hardware data files: a value with its unit, the source it was taken from, and, beside it, what
// others measured. Leaves out which facts a GPU has (gpu.cpp).
#pragma once

#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "sim/config/units.h"
#include "sim/config/value.h"
#include "sim/core/error.h"

namespace rehearse::hwmodels {

/// One map of a data file, read strictly: every problem is collected, and keys nobody asked for are problems.
///   key: {value: 900 GB/s, source: "datasheet", measured: {value: 819 GB/s, source: "who measured"}}
class FactReader {
 public:
  /// `sources` receives "prefix + key" -> source; `tags` shortens sources that a file repeats.
  FactReader(const config::Value& map, std::string prefix, std::vector<Diagnostic>& problems,
             std::map<std::string, std::string>& sources);

  void set_tags(const config::Value& tags);

  /// Reads `key` with `parse` (one of config/units.h). Null when absent or wrong; absent is a problem if `required`.
  template <typename T>
  std::optional<T> fact(const std::string& key, config::Reading<T> (*parse)(std::string_view), bool required = true);
  /// The `measured` side of a fact that was read before; null when there is none.
  template <typename T>
  std::optional<T> measured(const std::string& key, config::Reading<T> (*parse)(std::string_view));
  /// The same, of numbers that are greater than 0 in every device: others are problems.
  template <typename T>
  std::optional<T> size(const std::string& key, config::Reading<T> (*parse)(std::string_view), bool required = true);
  template <typename T>
  std::optional<T> measured_size(const std::string& key, config::Reading<T> (*parse)(std::string_view));
  /// A plain scalar without a source: names, titles. "" when absent (a problem).
  std::string word(const std::string& key);
  /// A map below this one, e.g. `peak`; null when absent.
  const config::Value* map(const std::string& key, bool required = true);
  /// A plain member of a fact ("links" of nvlink), read like a value without a source.
  template <typename T>
  std::optional<T> member(const std::string& key, const std::string& name, config::Reading<T> (*parse)(std::string_view));

  /// Reports the keys that no call above asked for. Call last.
  void refuse_the_rest();

  std::vector<std::string> keys() const;
  void complain(const config::Value& at, std::string problem, std::string fix);

 private:
  template <typename T>
  std::optional<T> above_zero(std::optional<T> value, const char* side, const std::string& key);
  const config::Value* child(const std::string& key, bool required);
  const config::Value* value_of(const config::Value& fact, const std::string& source_key);

  const config::Value map_;
  std::string prefix_;
  std::vector<Diagnostic>& problems_;
  std::map<std::string, std::string>& sources_;
  std::map<std::string, std::string> tags_;
  std::vector<std::string> asked_;
};

template <typename T>
std::optional<T> parse_at(const config::Value* value, config::Reading<T> (*parse)(std::string_view),
                          std::vector<Diagnostic>& problems) {
  if (value == nullptr) return std::nullopt;
  const config::Reading<T> reading = parse(value->text());
  if (!reading) problems.push_back(value->diagnostic(reading.problem, reading.fix));
  return reading.value;
}

template <typename T>
std::optional<T> FactReader::fact(const std::string& key, config::Reading<T> (*parse)(std::string_view), bool required) {
  const config::Value* found = child(key, required);
  return found == nullptr ? std::nullopt : parse_at(value_of(*found, prefix_ + key), parse, problems_);
}

template <typename T>
std::optional<T> FactReader::measured(const std::string& key, config::Reading<T> (*parse)(std::string_view)) {
  const config::Value* found = map_.find(key);
  const config::Value* side = found == nullptr ? nullptr : found->find("measured");
  return side == nullptr ? std::nullopt : parse_at(value_of(*side, prefix_ + key + ".measured"), parse, problems_);
}

template <typename T>
std::optional<T> FactReader::above_zero(std::optional<T> value, const char* side, const std::string& key) {
  if (!value) return value;
  bool above = false;
  if constexpr (std::is_arithmetic_v<T>) above = *value > 0;
  else above = value->value > 0;
  if (above) return value;
  const config::Value& fact = *map_.find(key);
  const config::Value* at = *side == '\0' ? &fact : fact.find(side);
  complain(*at->find("value"), "must be greater than 0, not " + at->find("value")->text(), "Write what the device has.");
  return std::nullopt;
}

template <typename T>
std::optional<T> FactReader::size(const std::string& key, config::Reading<T> (*parse)(std::string_view), bool required) {
  return above_zero(fact(key, parse, required), "", key);
}

template <typename T>
std::optional<T> FactReader::measured_size(const std::string& key, config::Reading<T> (*parse)(std::string_view)) {
  return above_zero(measured(key, parse), "measured", key);
}

template <typename T>
std::optional<T> FactReader::member(const std::string& key, const std::string& name,
                                    config::Reading<T> (*parse)(std::string_view)) {
  const config::Value* found = map_.find(key);
  return found == nullptr ? std::nullopt : parse_at(found->find(name), parse, problems_);
}

}  // namespace rehearse::hwmodels
