// Everything a measurements file may say: operations, their parameters with units and defaults, and the facts about a
// machine. The reader, the probe, the fit and measurements.md rest on these tables.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "calibrate/measurements.h"

namespace rehearse::calibrate {

enum class FactKind : std::uint8_t { flag, integer, number, text, lines };
std::string_view name_of(FactKind kind);

struct Key {
  std::string name;
  FactKind kind = FactKind::integer;
  std::string meaning;             // with the unit
  std::optional<Fact> fallback;    // absent = this; none = the key must be given
  std::vector<std::string> words;  // texts that are allowed; empty = any
};

/// What is timed, and which parameters say it.
struct Operation {
  std::string name;
  std::string meaning;
  std::vector<Key> keys;

  const Key* find(std::string_view key) const;
};

const std::vector<Operation>& operations();
const Operation* find_operation(std::string_view name);

/// Facts about the machine and its software, and how the probe was asked. None of them must be given.
const std::vector<Key>& machine_keys();
const std::vector<Key>& software_keys();
const std::vector<Key>& option_keys();

/// The tables of calibrate/measurements.md.
std::string operations_as_markdown();

}  // namespace rehearse::calibrate
