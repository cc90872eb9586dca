// A row of a table of measured runs: its cells as text and numbers. Leaves out what they mean (measured_setup.h,
// measured_tuning.h, measured_run.h).
#pragma once

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "sim/config/csv.h"

namespace rehearse::scenario {

/// A row that cannot become a scenario; the text is what the report shows.
struct NotSimulated {
  std::string reason;
};

inline std::string cell(const config::CsvRow& row, std::string_view column) { return std::string(row.find(column).value_or("")); }

inline bool contains(std::string_view text, std::string_view word) { return text.find(word) != std::string_view::npos; }

inline std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// The number that follows the first of these words.
inline std::optional<std::int64_t> number_after(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    const auto at = text.find(word);
    if (at == text.npos) continue;
    std::size_t i = at + std::string(word).size();
    std::int64_t n = 0;
    const std::size_t first = i;
    for (; i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) != 0 && n < 1'000'000'000; ++i) n = n * 10 + (text[i] - '0');
    if (i > first) return n;
  }
  return std::nullopt;
}

/// Letters and digits only: "Megatron-LM" and "megatron_lm" are one name.
inline std::string plain_name(const std::string& text) {
  std::string out;
  for (const char c : lower(text))
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) out += c;
  return out;
}

inline std::optional<std::int64_t> integer(const config::CsvRow& row, std::string_view column) {
  const auto number = row.find(column) ? row.number(column) : std::nullopt;
  if (!number || std::abs(*number) > 9e15) return std::nullopt;
  return static_cast<std::int64_t>(*number + (*number < 0 ? -0.5 : 0.5));
}

/// Nothing is said of how the job is spread over its GPUs.
inline bool degrees_open(const config::CsvRow& row) {
  for (const char* column : {"tp", "pp", "dp", "cp", "ep", "sharding"})
    if (!cell(row, column).empty()) return false;
  return true;
}

/// A row of Megatron's own functional tests: the memory of tiny models, and times of shared machines.
inline bool is_megatron_test(const config::CsvRow& row) { return contains(cell(row, "source"), "tests/functional_tests"); }

/// Framework profiles over Megatron-Core, and those of them that stand for NVIDIA's own recipes.
inline bool is_megatron(std::string_view profile) { return profile.starts_with("megatron") || profile.starts_with("nemo"); }
inline bool is_nvidia_recipe(std::string_view profile) { return profile == "megatron-bridge" || profile == "nemo-2024"; }

}  // namespace rehearse::scenario

