#include "hwmodels/device/data_facts.h"

#include <algorithm>
#include <array>

#include "sim/core/suggestion.h"

namespace rehearse::hwmodels {
namespace {
constexpr std::array<std::string_view, 7> kFactKeys{"value", "source", "measured", "datasheet", "links", "note", "standard_error"};
}  // namespace

FactReader::FactReader(const config::Value& map, std::string prefix, std::vector<Diagnostic>& problems,
                       std::map<std::string, std::string>& sources)
    : map_(map), prefix_(std::move(prefix)), problems_(problems), sources_(sources) {
  if (!map_.is_map()) complain(map_, "is no map (hardware data are keys with values)", "Write key: {value: …, source: …}.");
}

void FactReader::set_tags(const config::Value& tags) {
  for (const config::Value::Entry& e : tags.entries()) tags_[e.key] = e.value.text();
}

void FactReader::complain(const config::Value& at, std::string problem, std::string fix) {
  problems_.push_back(at.diagnostic(std::move(problem), std::move(fix)));
}

std::vector<std::string> FactReader::keys() const {
  std::vector<std::string> out;
  for (const config::Value::Entry& e : map_.entries()) out.push_back(e.key);
  return out;
}

const config::Value* FactReader::child(const std::string& key, bool required) {
  asked_.push_back(key);
  const config::Value* found = map_.find(key);
  if (found == nullptr && required) {
    Diagnostic d = map_.diagnostic("is missing (every GPU file states it)", "Add it with its unit and source.");
    d.key = prefix_ + key;
    problems_.push_back(std::move(d));
  }
  return found;
}

const config::Value* FactReader::value_of(const config::Value& fact, const std::string& source_key) {
  const config::Value* value = fact.find("value");
  const config::Value* source = fact.find("source");
  if (value == nullptr || !value->is_scalar()) {
    complain(fact, "has no value", "Write {value: …, source: …}.");
    return nullptr;
  }
  if (source == nullptr || source->text().empty()) {
    complain(fact, "has no source (a number without a source is a bug)", "Add source: who states or measured it.");
  } else {
    const auto tag = tags_.find(source->text());
    sources_[source_key] = tag == tags_.end() ? source->text() : tag->second;
  }
  for (const config::Value::Entry& e : fact.entries())
    if (std::find(kFactKeys.begin(), kFactKeys.end(), e.key) == kFactKeys.end())
      complain(e.value, "unknown key", "A fact has value, source, measured, datasheet, links, note or standard_error.");
  return value;
}

std::string FactReader::word(const std::string& key) {
  const config::Value* found = child(key, true);
  return found == nullptr ? "" : found->text();
}

const config::Value* FactReader::map(const std::string& key, bool required) { return child(key, required); }

void FactReader::refuse_the_rest() {
  for (const config::Value::Entry& e : map_.entries()) {
    if (std::find(asked_.begin(), asked_.end(), e.key) != asked_.end()) continue;
    const std::string meant = did_you_mean(e.key, asked_);
    complain(e.value, "unknown key", meant.empty() ? "Remove it." : meant);
  }
}

}  // namespace rehearse::hwmodels
