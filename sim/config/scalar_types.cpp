#include "sim/config/scalar_types.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "sim/core/suggestion.h"

namespace rehearse::config {

namespace {

bool within(double value, const Limits& limits) {
  if (limits.minimum && (value < *limits.minimum || (limits.above_minimum && value == *limits.minimum)))
    return false;
  return !limits.maximum || value <= *limits.maximum;
}

std::string with_limits(std::string words, const Limits& limits, std::string_view unit = {}) {
  const std::string bounds = words_of(limits, unit);
  return bounds.empty() ? words : words + ", " + bounds;
}

std::string json_limits(const Limits& limits, bool integer) {
  std::string out;
  if (limits.minimum) {
    if (integer && limits.above_minimum)
      out += fmt::format(R"(,"minimum":{})", *limits.minimum + 1);
    else
      out +=
          fmt::format(R"(,"{}":{})", limits.above_minimum ? "exclusiveMinimum" : "minimum", *limits.minimum);
  }
  if (limits.maximum) out += fmt::format(R"(,"maximum":{})", *limits.maximum);
  return out;
}

template <typename T>
bool take(const Reading<T>& reading, const Value& value, const std::string& needed, FieldReader& reader) {
  if (reading) return true;
  reader.complain(value, fmt::format("needs {}{}: {}", needed, reader.or_word, reading.problem), reading.fix);
  return false;
}

bool check_limits(double in_base_units, const Limits& limits, const Value& value, FieldReader& reader, std::string_view unit = {}) {
  if (within(in_base_units, limits)) return true;
  reader.complain(value, fmt::format("must be {}, not {}", words_of(limits, unit), value.text().substr(0, 60)));
  return false;
}

std::string_view base_unit(Dimension dimension) {
  switch (dimension) {
    case Dimension::bytes: return "B";
    case Dimension::rate: return "B/s";
    case Dimension::duration: return "s";
    case Dimension::flops_rate: return "FLOPS";
    case Dimension::frequency: return "Hz";
    case Dimension::power: return "W";
  }
  return {};
}

// All quantities differ only in parser, target type and number of base units.
template <typename T>
ScalarType quantity_type(std::string words, Dimension dimension, const Limits& limits,
                         Reading<T> (*parse)(std::string_view), std::string (*show)(T),
                         double (*in_base_units)(T)) {
  ScalarType type;
  const std::string needed = "a " + words;
  type.words = with_limits(fmt::format("{} ({})", words, example_of(dimension)), limits, base_unit(dimension));
  type.schema = fmt::format(R"({{"type":"string","pattern":"^[-+]?[0-9.]+([eE][-+]?[0-9]+)? *({})$"}})",
                            unit_pattern(dimension));
  type.read = [=](const Value& value, void* target, FieldReader& reader) {
    const std::string* text = reader.scalar(value, needed, true);
    if (!text) return false;
    const Reading<T> reading = parse(*text);
    if (!take(reading, value, needed, reader)) return false;
    if (!check_limits(in_base_units(*reading.value), limits, value, reader, base_unit(dimension))) return false;
    *static_cast<T*>(target) = *reading.value;
    return true;
  };
  type.show = [=](const void* target) { return show(*static_cast<const T*>(target)); };
  return type;
}

double identity(double value) { return value; }

ScalarType plain_number_type(std::string words, const Limits& limits,
                             Reading<double> (*parse)(std::string_view), std::string schema) {
  ScalarType type;
  const std::string needed = "a " + words;
  type.words = with_limits(words, limits);
  type.schema = std::move(schema);
  type.read = [=](const Value& value, void* target, FieldReader& reader) {
    const std::string* text = reader.scalar(value, needed, false);
    if (!text) return false;
    const Reading<double> reading = parse(*text);
    if (!take(reading, value, needed, reader) || !check_limits(*reading.value, limits, value, reader))
      return false;
    *static_cast<double*>(target) = *reading.value;
    return true;
  };
  type.show = [](const void* target) { return number_text(*static_cast<const double*>(target)); };
  return type;
}

std::string listed_names(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 40;
  std::string out;
  for (std::size_t i = 0; i < names.size() && i < kShown; ++i) out += (i ? ", " : "") + names[i];
  if (names.size() > kShown) out += fmt::format(" and {} more", names.size() - kShown);
  return out;
}

void refuse_word(const Value& value, const std::string& what, const std::vector<std::string>& names,
                 FieldReader& reader) {
  const std::string meant = did_you_mean(value.text(), names);
  reader.complain(value, fmt::format("unknown {}{} '{}'", what, reader.or_word, value.text().substr(0, 60)),
                  meant.empty() ? fmt::format("Use {}", listed_names(names)) : fmt::format("{} Valid: {}", meant, listed_names(names)));
}

}  // namespace

ScalarType integer_type(IntegerSlot slot, const Limits& limits) {
  ScalarType type;
  type.words = with_limits("integer", limits);
  type.schema = fmt::format(R"({{"type":"integer"{}}})", json_limits(limits, true));
  type.read = [=](const Value& value, void* target, FieldReader& reader) {
    const std::string* text = reader.scalar(value, "an integer", false);
    if (!text) return false;
    const Reading<std::int64_t> reading = parse_integer(*text);
    if (!take(reading, value, "an integer", reader)) return false;
    if (!check_limits(static_cast<double>(*reading.value), limits, value, reader)) return false;
    if (*reading.value < slot.lowest || *reading.value > slot.highest) {
      reader.complain(value,
                      fmt::format("must be between {} and {}, not {}", slot.lowest, slot.highest, *text));
      return false;
    }
    slot.store(target, *reading.value);
    return true;
  };
  type.show = [=](const void* target) { return fmt::format("{}", slot.load(target)); };
  return type;
}

ScalarType number_type(const Limits& limits) {
  return plain_number_type("number", limits, parse_number,
                           fmt::format(R"({{"type":"number"{}}})", json_limits(limits, false)));
}

ScalarType fraction_type(const Limits& limits) {
  return plain_number_type(
      "fraction (0.45 or 45 %)", limits, parse_fraction,
      fmt::format(R"({{"anyOf":[{{"type":"number"{}}},{{"type":"string","pattern":"^[-+0-9.eE]+ *%$"}}]}})",
                  json_limits(limits, false)));
}

ScalarType boolean_type() {
  ScalarType type;
  type.words = "true or false";
  type.schema = R"({"type":"boolean"})";
  type.read = [](const Value& value, void* target, FieldReader& reader) {
    const std::string* text = reader.scalar(value, "true or false", false);
    if (!text) return false;
    if (*text != "true" && *text != "false") {
      // YAML 1.1 took these for booleans, YAML 1.2 takes them for text: nobody can know what was meant.
      static const std::pair<const char*, const char*> kOld[] = {
          {"yes", "true"}, {"on", "true"},   {"y", "true"},  {"1", "true"},
          {"no", "false"}, {"off", "false"}, {"n", "false"}, {"0", "false"}};
      std::string lowered = *text;
      for (char& c : lowered) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c | 32 : c);
      std::string fix = "Write true or false";
      for (const auto& [old, now] : kOld)
        if (lowered == old) fix = fmt::format("Write {}", now);
      if (lowered == "true" || lowered == "false") fix = fmt::format("Write {}", lowered);
      reader.complain(
          value, fmt::format("needs true or false{}, not '{}'", reader.or_word, text->substr(0, 60)), fix);
      return false;
    }
    *static_cast<bool*>(target) = *text == "true";
    return true;
  };
  type.show = [](const void* target) {
    return std::string(*static_cast<const bool*>(target) ? "true" : "false");
  };
  return type;
}

ScalarType text_type() {
  ScalarType type;
  type.words = "text";
  type.schema = R"({"type":"string","minLength":1})";
  type.read = [](const Value& value, void* target, FieldReader& reader) {
    const std::string* text = reader.scalar(value, "text", true);
    if (text && text->empty()) reader.complain(value, "is empty", "Write a value, or remove the key");
    if (!text || text->empty()) return false;
    *static_cast<std::string*>(target) = *text;
    return true;
  };
  type.show = [](const void* target) { return *static_cast<const std::string*>(target); };
  return type;
}

ScalarType choice_type(IntegerSlot slot, std::vector<ChoiceWord> words) {
  ScalarType type;
  std::vector<std::string> names;
  std::string schema;
  for (const ChoiceWord& w : words) {
    names.push_back(w.word);
    type.choices.emplace_back(w.word, w.doc);
    schema += fmt::format(R"({}"{}")", schema.empty() ? "" : ",", w.word);
  }
  type.words = "one of " + listed_names(names);
  type.schema = fmt::format(R"({{"type":"string","enum":[{}]}})", schema);
  type.read = [=](const Value& value, void* target, FieldReader& reader) {
    const std::string* text = reader.scalar(value, "one of " + listed_names(names), true);
    if (!text) return false;
    const auto it =
        std::find_if(words.begin(), words.end(), [&](const ChoiceWord& w) { return w.word == *text; });
    if (it == words.end()) {
      refuse_word(value, "choice", names, reader);
      return false;
    }
    slot.store(target, it->value);
    return true;
  };
  type.show = [=](const void* target) {
    const std::int64_t now = slot.load(target);
    for (const ChoiceWord& w : words)
      if (w.value == now) return w.word;
    return std::string{};
  };
  return type;
}

ScalarType name_type(std::string what, Names names) {
  ScalarType type = text_type();
  type.words = std::string(std::string_view("aeiou").find(what.front()) == std::string_view::npos ? "name of a " : "name of an ") + what;
  type.read = [what, names = std::move(names), text = type.read](const Value& value, void* target,
                                                                 FieldReader& reader) {
    std::string name;
    if (!text(value, &name, reader)) return false;
    const std::vector<std::string> valid = names();
    if (std::find(valid.begin(), valid.end(), name) == valid.end()) {
      refuse_word(value, what, valid, reader);
      return false;
    }
    *static_cast<std::string*>(target) = std::move(name);
    return true;
  };
  return type;
}

bool is_file_name(const std::string& name) {
  return name.find('/') != std::string::npos || name.ends_with(".yaml");
}

ScalarType name_or_file_type(std::string what, Names names, Meant meant) {
  ScalarType type = name_type(what, names);
  type.words += ", or a file";
  type.read = [=, named = type.read, text = text_type().read](const Value& value, void* target, FieldReader& reader) {
    if (is_file_name(value.text())) return text(value, target, reader);
    const std::vector<std::string> known = names();
    const std::string fix = meant && std::find(known.begin(), known.end(), value.text()) == known.end() ? meant(value.text()) : "";
    if (fix.empty()) return named(value, target, reader);
    reader.complain(value, fmt::format("there is no {} '{}'", what, value.text()), fix);
    return false;
  };
  return type;
}

ScalarType bytes_type(const Limits& limits) {
  return quantity_type<Bytes>("size", Dimension::bytes, limits, parse_bytes, to_text,
                              [](Bytes b) { return static_cast<double>(b.value); });
}
ScalarType rate_type(const Limits& limits) {
  return quantity_type<BytesPerSecond>("bandwidth", Dimension::rate, limits, parse_rate, to_text,
                                       [](BytesPerSecond r) { return r.value; });
}
ScalarType duration_type(const Limits& limits) {
  return quantity_type<Duration>("time", Dimension::duration, limits, parse_duration, to_text, to_seconds);
}
ScalarType flops_rate_type(const Limits& limits) {
  return quantity_type<FlopsPerSecond>("arithmetic rate", Dimension::flops_rate, limits, parse_flops_rate,
                                       to_text, [](FlopsPerSecond r) { return r.value; });
}
ScalarType frequency_type(const Limits& limits) {
  return quantity_type<double>("frequency", Dimension::frequency, limits, parse_frequency, frequency_text,
                               identity);
}
ScalarType power_type(const Limits& limits) {
  return quantity_type<double>("power", Dimension::power, limits, parse_power, power_text, identity);
}

}  // namespace rehearse::config
