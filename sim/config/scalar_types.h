// The types a field can have: integer, number, boolean, text, choice, name, size, bandwidth, time, rate.
// Leaves out members and tables (fields.h). Each maker says how its target is stored, nothing else is a
// template.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "sim/config/reader.h"
#include "sim/config/units.h"

namespace rehearse::config {

/// How an integer or enum of whatever size is stored.
struct IntegerSlot {
  void (*store)(void* target, std::int64_t value);
  std::int64_t (*load)(const void* target);
  std::int64_t lowest;
  std::int64_t highest;
};

template <typename M>
IntegerSlot integer_slot() {
  constexpr bool is_enum = std::is_enum_v<M>;
  IntegerSlot slot{
      [](void* target, std::int64_t v) { *static_cast<M*>(target) = static_cast<M>(v); },
      [](const void* target) { return static_cast<std::int64_t>(*static_cast<const M*>(target)); },
      std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
  if constexpr (!is_enum) {
    if constexpr (sizeof(M) < 8) slot.highest = static_cast<std::int64_t>(std::numeric_limits<M>::max());
    if constexpr (sizeof(M) < 8 || std::is_unsigned_v<M>)
      slot.lowest = static_cast<std::int64_t>(std::numeric_limits<M>::min());
  }
  return slot;
}

struct ChoiceWord {
  std::string word;
  std::int64_t value;
  std::string doc;
};

using Names = std::function<std::vector<std::string>()>;

ScalarType integer_type(IntegerSlot slot, const Limits& limits);
ScalarType number_type(const Limits& limits);    // double
ScalarType fraction_type(const Limits& limits);  // double, also "45 %"
ScalarType boolean_type();                       // bool; only true and false
ScalarType text_type();                          // std::string, not empty
ScalarType choice_type(IntegerSlot slot, std::vector<ChoiceWord> words);
/// std::string that must be one of the names; `what` they are, e.g. "GPU".
ScalarType name_type(std::string what, Names names);
/// A name as above, or the path of the user's own file: it holds a '/' or ends in .yaml.
/// `meant`: what to write in place of a word that is no name, or nothing (then the names are listed).
using Meant = std::function<std::string(const std::string&)>;
ScalarType name_or_file_type(std::string what, Names names, Meant meant = {});
bool is_file_name(const std::string& name);
ScalarType bytes_type(const Limits& limits);       // Bytes
ScalarType rate_type(const Limits& limits);        // BytesPerSecond
ScalarType duration_type(const Limits& limits);    // Duration
ScalarType flops_rate_type(const Limits& limits);  // FlopsPerSecond
ScalarType frequency_type(const Limits& limits);   // double, hertz
ScalarType power_type(const Limits& limits);       // double, watts

}  // namespace rehearse::config
