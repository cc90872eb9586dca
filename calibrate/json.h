// JSON with memory: every value knows its line and column. Only what the measurements file needs, so that rehearse-probe
// compiles on machines that have CUDA and nothing else. Leaves out what the keys mean (measurements_reader.cpp).
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace rehearse::calibrate {

struct Place {
  int line = 0;    // from 1; 0 = no such value
  int column = 0;  // from 1, in bytes
};

/// Line and column of a byte of the text.
Place place_of_byte(std::string_view text, std::size_t byte);

/// The way to a value: keys of objects and positions in arrays.
using JsonPath = std::vector<std::variant<std::string, std::size_t>>;
/// "series[3].parameters.m"
std::string to_string(const JsonPath& path);

struct JsonValue {
  using Items = std::vector<JsonValue>;
  using Members = std::vector<std::pair<std::string, JsonValue>>;  // as they stand in the file
  /// Whole numbers within 64 bits are integers, all others doubles.
  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Items, Members> value = nullptr;
  Place at;

  template <typename T>
  const T* get() const { return std::get_if<T>(&value); }
  /// Member of an object, of equal keys the last; null when there is none.
  const JsonValue* find(std::string_view key) const;
  bool is_number() const { return get<double>() != nullptr || get<std::int64_t>() != nullptr; }
  double number() const;  // expects is_number()
};

/// The text is no JSON: what is wrong, and where.
struct JsonError : std::runtime_error {
  JsonError(const std::string& what, Place where) : std::runtime_error(what), at(where) {}
  Place at;
};

struct ParsedJson {
  JsonValue root;
  JsonPath repeated;  // the first key that stands twice in one object; empty: none
  Place repeated_at;
};

/// Strict: RFC 8259, UTF-8, nothing after the value, at most 100 levels. Throws JsonError.
ParsedJson parse_json(std::string_view text);

/// In quotes, escaped. Bytes that are no UTF-8 become U+FFFD: names of devices may hold anything.
std::string json_text(std::string_view text);
/// As short as it can be read back exactly, and never like an integer: "180.0". Expects a finite number.
std::string json_number(double value);

}  // namespace rehearse::calibrate
