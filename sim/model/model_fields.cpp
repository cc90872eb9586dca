#include "sim/model/model_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace rehearse::model {

namespace {

/// The value as a report shows it, cut short: a layer_types list of 126 words helps nobody.
std::string shown(const config::Value& value) {
  using Kind = config::Value::Kind;
  switch (value.kind()) {
    case Kind::null:
      return "null";
    case Kind::scalar:
      return value.text();
    case Kind::list:
      return fmt::format("a list of {}", value.items().size());
    case Kind::map:
      return "an object";
  }
  return {};
}

}  // namespace

std::optional<double> real_number(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || text.empty()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> whole_number(const std::string& text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end && !text.empty()) return value;
  const std::optional<double> real = real_number(text);  // 5e8, 4096.0
  if (real && std::nearbyint(*real) == *real && std::abs(*real) < 9e15)
    return static_cast<std::int64_t>(*real);
  return std::nullopt;
}

bool ModelFields::is_null(const char* name) const {
  const config::Value* value = object_.find(name);
  return value != nullptr && value->is_null();
}

void ModelFields::note_used(const char* name, const config::Value& value) {
  if (seen_.insert(name).second) report_.used.push_back({value.at(), value.path(), shown(value)});
}

void ModelFields::assume(Names names, const std::string& value) {
  const char* name = *names.begin();
  if (seen_.insert(fmt::format("assumed {}", name)).second)
    report_.assumed.push_back({object_.at(), config::child_path(object_.path(), name), value});
}

const config::Value* ModelFields::find(Names names) {
  const config::Value* found = nullptr;
  for (const char* name : names) {
    const config::Value* value = object_.find(name);
    if (value == nullptr) continue;
    note_used(name, *value);
    if (found == nullptr && !value->is_null()) found = value;
  }
  return found;
}

void ModelFields::wrong(const config::Value& value, const std::string& wanted) {
  mistakes_.push_back(value.diagnostic(fmt::format("\"{}\" is not {}", shown(value), wanted)));
}

std::int64_t ModelFields::integer(Names names, std::optional<std::int64_t> fallback) {
  const config::Value* value = find(names);
  if (value == nullptr) {
    if (fallback)
      assume(names, std::to_string(*fallback));
    else
      complain(*names.begin(), "missing (the shape cannot be guessed)", "State it");
    return fallback.value_or(0);
  }
  return whole_size(*value);
}

std::int64_t ModelFields::whole_size(const config::Value& value) {
  // No size of a model comes near a billion; within it, products of two sizes cannot overflow before they are
  // checked.
  constexpr std::int64_t kLargest = 1'000'000'000;
  const std::optional<std::int64_t> whole = value.is_scalar() ? whole_number(value.text()) : std::nullopt;
  if (!whole)
    wrong(value, "a whole number");
  else if (*whole > kLargest || *whole < -kLargest)
    wrong(value, "a size that a model can have");
  else
    return *whole;
  return 0;
}

std::int64_t ModelFields::integer_or_zero(const char* name, std::int64_t fallback) {
  if (!is_null(name)) return integer({name}, fallback);
  note_used(name, *object_.find(name));
  return 0;
}

double ModelFields::number_or_zero(const char* name, double fallback) {
  if (!is_null(name)) return number({name}, fallback);
  note_used(name, *object_.find(name));
  return 0;
}

double ModelFields::number(Names names, double fallback) {
  const config::Value* value = find(names);
  if (value == nullptr) return assume(names, fmt::format("{}", fallback)), fallback;
  const std::optional<double> real = value->is_scalar() ? real_number(value->text()) : std::nullopt;
  if (!real) wrong(*value, "a number");
  return real.value_or(fallback);
}

bool ModelFields::flag(Names names, bool fallback) {
  const config::Value* value = find(names);
  if (value == nullptr) return assume(names, fallback ? "true" : "false"), fallback;
  if (value->is_scalar() && value->text() == "true") return true;
  if (value->is_scalar() && value->text() == "false") return false;
  wrong(*value, "true or false");
  return fallback;
}

std::string ModelFields::word(Names names, const std::string& fallback) {
  const config::Value* value = find(names);
  if (value == nullptr) return assume(names, fallback), fallback;
  if (!value->is_scalar()) wrong(*value, "a word");
  return value->text();
}

std::optional<std::vector<std::int64_t>> ModelFields::integers(Names names) {
  const config::Value* value = find(names);
  if (value == nullptr) return std::nullopt;
  if (!value->is_list()) wrong(*value, "a list of whole numbers");
  std::vector<std::int64_t> list;
  for (const config::Value& item : value->items()) {
    list.push_back(whole_size(item));
  }
  return list;
}

std::optional<std::vector<std::string>> ModelFields::words(Names names) {
  const config::Value* value = find(names);
  if (value == nullptr) return std::nullopt;
  if (!value->is_list()) wrong(*value, "a list of words");
  std::vector<std::string> list;
  for (const config::Value& item : value->items()) list.push_back(item.text());
  return list;
}

Activation ModelFields::activation(Names names, Activation fallback) {
  const config::Value* value = find(names);
  if (value == nullptr) return assume(names, "the family's activation"), fallback;
  const std::string& text = value->text();
  if (text == "silu" || text == "swish") return Activation::silu;
  if (text == "gelu" || text == "gelu_python") return Activation::gelu;
  if (text == "gelu_new" || text == "gelu_pytorch_tanh" || text == "gelu_fast" || text == "quick_gelu")
    return Activation::gelu_tanh;
  if (text == "relu") return Activation::relu;
  if (text == "relu2") return Activation::squared_relu;
  wrong(*value, "a known activation (silu, gelu, gelu_new, gelu_pytorch_tanh, relu, relu2)");
  return fallback;
}

void ModelFields::ignore(Names names, const std::string& reason) {
  for (const char* name : names) {
    const config::Value* value = object_.find(name);
    if (value != nullptr && seen_.insert(name).second)
      report_.ignored.push_back({value->at(), value->path(), reason});
  }
}

void ModelFields::refuse(const char* name, const std::string& problem) {
  const config::Value* value = object_.find(name);
  seen_.insert(name);
  mistakes_.push_back((value != nullptr ? *value : object_).diagnostic(problem));
}

void ModelFields::refuse_if_set(const char* name, const std::string& problem) {
  const config::Value* value = object_.find(name);
  if (value == nullptr) return;
  const bool set = value->text() == "true" || !value->items().empty() || !value->entries().empty();
  if (set)
    refuse(name, problem);
  else
    ignore({name}, "switched off");
}

void ModelFields::complain(const std::string& key, const std::string& problem, const std::string& fix) {
  const config::Value* value = object_.find(key);   // nullptr: what is missing has no place but its map's
  Diagnostic diagnostic = (value == nullptr ? object_ : *value).diagnostic(problem, fix);
  diagnostic.key = config::child_path(object_.path(), key);
  mistakes_.push_back(std::move(diagnostic));
}

ImportReport ModelFields::take_report(const char* (*reason_to_ignore)(const std::string& key)) {
  for (const config::Value::Entry& entry : object_.entries()) {
    if (seen_.count(entry.key) > 0) continue;
    const char* reason = reason_to_ignore(entry.key);
    const ImportNote note{entry.value.at(), entry.value.path(),
                          reason != nullptr ? reason : shown(entry.value)};
    (reason != nullptr ? report_.ignored : report_.not_understood).push_back(note);
  }
  return std::move(report_);
}

}  // namespace rehearse::model
