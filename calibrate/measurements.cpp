#include "calibrate/measurements.h"

#include "calibrate/operations.h"
#include "sim/core/contract.h"

namespace rehearse::calibrate {
namespace {

const Fact& fact_of(const Series& s, std::string_view name) {
  const Operation* operation = find_operation(s.operation);
  EXPECTS(operation != nullptr, s.operation);
  const Key* key = operation->find(name);
  EXPECTS(key != nullptr, s.operation + " has no parameter " + std::string(name));
  const auto at = s.parameters.find(name);
  if (at != s.parameters.end()) return at->second;
  EXPECTS(key->fallback.has_value(), s.operation + " without " + std::string(name));
  return *key->fallback;
}

template <typename T>
const T& fact_as(const Series& s, std::string_view name) {
  const T* value = std::get_if<T>(&fact_of(s, name));
  EXPECTS(value != nullptr, s.operation + ": " + std::string(name) + " is of another type");
  return *value;
}

std::string text_of(const Fact& fact) {
  if (const bool* flag = std::get_if<bool>(&fact)) return *flag ? "true" : "false";
  if (const auto* whole = std::get_if<std::int64_t>(&fact)) return std::to_string(*whole);
  if (const auto* text = std::get_if<std::string>(&fact)) return *text;
  EXPECTS(false, "no parameter is a number with a fraction, or a list");
  return {};
}

}  // namespace

std::int64_t Series::integer(std::string_view name) const { return fact_as<std::int64_t>(*this, name); }
const std::string& Series::text(std::string_view name) const { return fact_as<std::string>(*this, name); }
bool Series::flag(std::string_view name) const { return fact_as<bool>(*this, name); }

std::string identity(std::string_view operation, const Facts& parameters) {
  const Operation* known = find_operation(operation);
  EXPECTS(known != nullptr, std::string(operation));
  std::string out(operation);
  for (const Key& key : known->keys) {
    const auto at = parameters.find(key.name);
    // `origin` says where a shape is from, not what is measured.
    if (at == parameters.end() || key.name == "origin" || (key.fallback && *key.fallback == at->second)) continue;
    out += " " + key.name + "=" + text_of(at->second);
  }
  return out;
}

}  // namespace rehearse::calibrate
