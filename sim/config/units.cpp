#include "sim/config/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "sim/config/decimal.h"
#include "sim/config/unit_scales.h"
#include "sim/core/error.h"
#include "sim/core/suggestion.h"

namespace rehearse::config {

namespace {

constexpr std::pair<const char*, const char*> kLongNames[] = {
    {"byte", "b"},  {"bytes", "b"}, {"sec", "s"},   {"secs", "s"},   {"second", "s"},   {"seconds", "s"},
    {"msec", "ms"}, {"usec", "us"}, {"nsec", "ns"}, {"mins", "min"}, {"minute", "min"}, {"minutes", "min"},
    {"hr", "h"},    {"hour", "h"},  {"hours", "h"}, {"watt", "w"},   {"watts", "w"}};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::string joined(const std::vector<std::string>& words, const std::string& before, const char* last_join) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += i + 1 == words.size() ? last_join : ", ";
    out += before + words[i];
  }
  return out;
}

std::vector<std::string> names_of(const Scale& scale) {
  std::vector<std::string> names;
  for (const Unit& unit : scale.units)
    if (static_cast<unsigned char>(unit.name[0]) < 0x80) names.push_back(unit.name);
  return names;
}

/// Units that somebody who wrote `wrong` may have meant, likeliest first.
std::vector<std::string> meant(const Scale& scale, std::string_view wrong) {
  if (wrong.empty()) return scale.usual;
  const std::vector<std::string> names = names_of(scale);
  std::string written(wrong);
  const bool rates = scale.what[2] == 'b';
  if (rates && written.ends_with("ps") && written.size() > 2) written.replace(written.size() - 2, 2, "/s");
  if (!rates && written.ends_with("/s") && written.size() > 2) written.resize(written.size() - 2);
  if (std::find(names.begin(), names.end(), written) != names.end()) return {written};
  std::string word = lower(written);
  for (const auto& [long_name, unit] : kLongNames)
    if (word == long_name) word = unit;
  std::vector<std::string> out;
  const auto offer_if = [&](auto accepts) {
    if (out.empty())
      for (const std::string& name : names)
        if (accepts(lower(name))) out.push_back(name);
  };
  offer_if([&](const std::string& name) { return name == word; });
  // K and k: the thousand or 1024? G alone: of what?
  const std::string letter = word.substr(0, 1);
  if (!out.empty() && scale.what[2] == 's' && letter == "k") out = {"kB", "KiB"};
  offer_if([&](const std::string& name) { return name == word + "/s"; });
  offer_if([&](const std::string& name) { return word.size() == 1 && name.starts_with(word); });
  offer_if([&](const std::string& name) { return word == letter + "i" && name.starts_with(word); });
  if (out.empty())
    if (const auto near = nearest_name(std::string(wrong), names)) out.push_back(*near);
  return out;
}

template <typename T>
Reading<T> refused(std::string problem, std::string fix) {
  return {std::nullopt, std::move(problem), std::move(fix)};
}

struct Quantity {
  Decimal number;
  const Unit* unit = nullptr;
  std::string problem = {};
  std::string fix = {};
};

std::string_view shortened(std::string_view text) { return text.substr(0, 60); }

Quantity read_quantity(std::string_view text, Dimension dimension) {
  const Scale& scale = scale_of(dimension);
  Quantity out;
  const NumberPrefix prefix = read_number_prefix(text);
  out.problem = prefix.problem;
  out.fix = prefix.fix;
  if (!prefix.problem.empty()) return out;
  if (!prefix.number) {
    out.problem = fmt::format("'{}' is not {}", shortened(text), scale.what);
    out.fix = fmt::format("Write a number with a unit, e.g. {}", example_of(dimension));
    return out;
  }
  std::string_view name = prefix.rest;
  while (name.starts_with(' ')) name.remove_prefix(1);
  for (const Unit& unit : scale.units)
    if (name == unit.name) {
      out.number = *prefix.number;
      out.unit = &unit;
      return out;
    }
  const std::string number(text.substr(0, text.size() - prefix.rest.size()));
  const std::vector<std::string> candidates = meant(scale, name);
  out.problem = name.empty() ? fmt::format("'{}' has no unit", shortened(text))
                             : fmt::format("'{}' is not a unit of {}", shortened(name),
                                           scale.what + 2 + (scale.what[1] == 'n'));
  if (lower(name).starts_with('k') && candidates.size() > 1) {
    out.problem += " (k is 1000, Ki is 1024)";
  } else if (!candidates.empty() && !name.empty() && lower(name) == lower(candidates[0])) {
    const bool bits = dimension == Dimension::bytes || dimension == Dimension::rate;
    out.problem += bits ? " (B is bytes, b is bits)" : " (upper and lower case differ)";
  }
  if (dimension == Dimension::bytes && name.size() > 1 && name.ends_with('b') && (name.size() == 2 || (name[0] >= 'A' && name[0] <= 'Z')) && !candidates.empty()) {   // of bits it would be an eighth
    out.fix = fmt::format("Write {} for bytes, or an eighth of it, {}, for bits", number + " " + candidates[0], config::number_text(prefix.number->to_double() / 8) + " " + candidates[0]);
    return out;
  }
  if (dimension == Dimension::bytes && name.empty()) {
    out.fix = fmt::format("Write {}", joined({"GiB", "GB", "MiB", "MB"}, number + " ", " or "));
    return out;
  }
  out.fix = candidates.empty() ? fmt::format("Use one of {}", joined(names_of(scale), "", " or "))
                               : fmt::format("Write {}", joined(candidates, number + " ", " or "));
  return out;
}

Reading<double> read_scaled(std::string_view text, Dimension dimension) {
  const Quantity q = read_quantity(text, dimension);
  if (!q.unit) return refused<double>(q.problem, q.fix);
  const double value = std::ldexp(q.number.to_double(q.unit->decimal), q.unit->binary) * q.unit->times;
  if (!std::isfinite(value)) return refused<double>(fmt::format("'{}' is too large", shortened(text)), "");
  return {value};
}

}  // namespace

Reading<std::int64_t> parse_integer(std::string_view text) {
  const NumberPrefix prefix = read_number_prefix(text);
  if (!prefix.problem.empty()) return refused<std::int64_t>(prefix.problem, prefix.fix);
  if (!prefix.number)
    return refused<std::int64_t>(fmt::format("'{}' is not a whole number", shortened(text)), "");
  if (!prefix.rest.empty()) {
    std::string fix = "Write the number alone";
    const Whole n = to_whole(*prefix.number, 1, 0, 0, Rounding::exact);
    const std::string rest = lower(prefix.rest);
    const int thousands = rest == "k" ? 1 : rest == "m" ? 2 : rest == "g" || rest == "b" ? 3 : 0;
    if (thousands == 1 && n.error == WholeError::none && n.value > 0 && n.value < 1'000'000)
      fix = fmt::format("Write {} or {}", n.value * 1000, n.value * 1024);
    else if (thousands > 1)
      fix = fmt::format("Write {}e{}", text.substr(0, text.size() - prefix.rest.size()), thousands * 3);
    return refused<std::int64_t>(
        fmt::format("'{}' is not a whole number (a count has no unit)", shortened(text)), fix);
  }
  const Whole whole = to_whole(*prefix.number, 1, 0, 0, Rounding::exact);
  if (whole.error == WholeError::range)
    return refused<std::int64_t>(fmt::format("'{}' is beyond 64 bits", shortened(text)), "");
  if (whole.error == WholeError::fraction)
    return refused<std::int64_t>(fmt::format("'{}' is not a whole number", shortened(text)), "");
  return {whole.value};
}

Reading<double> parse_number(std::string_view text) {
  const NumberPrefix prefix = read_number_prefix(text);
  if (!prefix.problem.empty()) return refused<double>(prefix.problem, prefix.fix);
  if (!prefix.number || !prefix.rest.empty())
    return refused<double>(fmt::format("'{}' is not a finite number", shortened(text)), "");
  const double value = prefix.number->to_double();
  if (!std::isfinite(value)) return refused<double>(fmt::format("'{}' is too large", shortened(text)), "");
  return {value};
}

Reading<double> parse_fraction(std::string_view text) {
  if (!text.ends_with('%')) return parse_number(text);
  std::string_view number = text.substr(0, text.size() - 1);
  while (number.ends_with(' ')) number.remove_suffix(1);
  const NumberPrefix prefix = read_number_prefix(number);
  if (!prefix.number || !prefix.rest.empty())
    return refused<double>(fmt::format("'{}' is not a percentage", shortened(text)), "");
  return {prefix.number->to_double(-2)};
}

Reading<Bytes> parse_bytes(std::string_view text) {
  const Quantity q = read_quantity(text, Dimension::bytes);
  if (!q.unit) return refused<Bytes>(q.problem, q.fix);
  const Whole whole = to_whole(q.number, 1, q.unit->binary, q.unit->decimal, Rounding::exact);
  if (whole.error == WholeError::range)
    return refused<Bytes>(fmt::format("'{}' is beyond 8 EiB", shortened(text)), "");
  if (whole.error == WholeError::fraction)
    return refused<Bytes>(fmt::format("'{}' is not a whole number of bytes", shortened(text)),
                          fmt::format("Write {} B", whole.value));
  return {Bytes{whole.value}};
}

Reading<BytesPerSecond> parse_rate(std::string_view text) {
  const Reading<double> r = read_scaled(text, Dimension::rate);
  if (!r) return refused<BytesPerSecond>(r.problem, r.fix);
  return {BytesPerSecond{*r.value}};
}

Reading<Duration> parse_duration(std::string_view text) {
  const Quantity q = read_quantity(text, Dimension::duration);
  if (!q.unit) return refused<Duration>(q.problem, q.fix);
  const Whole whole = to_whole(q.number, q.unit->times, 0, q.unit->decimal + 12, Rounding::nearest);
  if (whole.error == WholeError::range)
    return refused<Duration>(
        fmt::format("'{}' is longer than 106 days, the longest simulated time", shortened(text)), "");
  if (whole.value == 0 && !q.number.digits.empty())
    return refused<Duration>(fmt::format("'{}' is shorter than a picosecond", shortened(text)),
                             "Write 0 s or 1 ps");
  return {Duration{whole.value}};
}

Reading<FlopsPerSecond> parse_flops_rate(std::string_view text) {
  const Reading<double> r = read_scaled(text, Dimension::flops_rate);
  if (!r) return refused<FlopsPerSecond>(r.problem, r.fix);
  return {FlopsPerSecond{*r.value}};
}

Reading<double> parse_frequency(std::string_view text) { return read_scaled(text, Dimension::frequency); }
Reading<double> parse_power(std::string_view text) { return read_scaled(text, Dimension::power); }

}  // namespace rehearse::config
