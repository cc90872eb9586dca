#include "sim/importers/importer.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "sim/config/units.h"
#include "sim/core/suggestion.h"

namespace rehearse::importers {

using config::Value;

namespace {

std::string shown(const Value& value) {
  if (value.is_list()) return fmt::format("a list of {}", value.items().size());
  if (value.is_map()) return "a map";
  if (value.is_null()) return "nothing";
  return "'" + value.text().substr(0, 60) + "'";
}

/// The name in $NAME or ${NAME}, "" where there is more to it.
std::string variable_in(const std::string& text) {
  std::string name = text.substr(std::min<std::size_t>(text.size(), 1));
  if (name.starts_with('{') && name.ends_with('}')) name = name.substr(1, name.size() - 2);
  const bool is_name = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; });
  return text.starts_with('$') && is_name ? name : std::string();
}

/// What to do about a number that cannot be read: a variable that comes from outside of a script cannot be guessed.
std::string way_out(const Value& value, std::string_view key, const std::string& fix) {
  if (!value.is_scalar()) return {};
  if (value.text().find_first_of("$`") == std::string::npos) return fix;
  if (value.text().find('`') != std::string::npos || value.text().find("$(") != std::string::npos)
    return fmt::format("Only running the script would tell: write its value there, or {} and state what it stands for in the scenario", how_to_leave_out(key));
  const std::string name = variable_in(value.text());
  const std::string given = name.empty() ? std::string() : fmt::format("give {1} with training.variables: {{{0}: ...}} (import: {2}), ", name, name[0] <= '9' ? "argument " + name : name, name[0] <= '9' ? "--arguments 'A B ...', as for the script" : "--variable " + name + "=...");
  return fmt::format("The script does not set it: {}write its value there, or {} and state what it stands for in the scenario", given, how_to_leave_out(key));
}

bool matches(std::string_view pattern, std::string_view key) {
  if (pattern.ends_with('*')) return key.starts_with(pattern.substr(0, pattern.size() - 1));
  return pattern == key;
}

bool one_of(std::string_view words, const Value& value) {
  if (!value.is_scalar()) return value.is_null() || (value.items().empty() && value.entries().empty() && words.find("[]") != std::string_view::npos);
  while (!words.empty()) {
    const std::size_t bar = words.find('|');
    const std::string_view word = words.substr(0, bar);
    if (word == value.text()) return true;
    const auto a = parse_flag(word), b = parse_flag(value.text());
    if (a && b && *a == *b) return true;
    const auto x = config::parse_number(word), y = config::parse_number(value.text());
    if (x && y && *x.value == *y.value) return true;
    words = bar == std::string_view::npos ? std::string_view() : words.substr(bar + 1);
  }
  return false;
}

bool is_unset(const Value& value) {
  if (value.is_list()) return value.items().empty();
  return value.is_null() || value.text() == "None" || value.text() == "null" || value.text() == "[]" || parse_flag(value.text()) == std::optional<bool>(false);
}

bool earlier(const SourceLocation& a, const SourceLocation& b) { return std::tie(a.file, a.line, a.column) < std::tie(b.file, b.line, b.column); }

}  // namespace

std::string how_to_leave_out(std::string_view key) { return fmt::format("leave it out with training.without: [{0}] (import: --without {0})", key); }

std::optional<bool> parse_flag(std::string_view text) {
  for (const char* word : {"true", "True", "TRUE", "yes", "Yes", "on", "1"})
    if (text == word) return true;
  for (const char* word : {"false", "False", "FALSE", "no", "No", "NO", "off", "0"})
    if (text == word) return false;
  return std::nullopt;
}

std::int64_t bounded_product(std::initializer_list<std::int64_t> factors) {
  constexpr std::int64_t kMost = 1'000'000'000'000'000;
  std::int64_t product = 1;
  for (const std::int64_t f : factors) product = f > 0 && product > kMost / f ? kMost : product * f;
  return product;
}

Importer::Importer(const Value& root, const Context& context, Vocabulary vocabulary) : root_(root), context_(context), vocabulary_(std::move(vocabulary)) {
  if (!root.is_map()) throw ConfigError(root.diagnostic(fmt::format("needs keys with values, not {}", shown(root)), "Is it the file you meant?"));
  flatten(root, "");
}

bool Importer::leave_out(const std::string& key) const {
  for (const std::string& name : context_.without)
    if (key == name || (key.starts_with(name) && key[name.size()] == '.')) return true;
  return false;
}

void Importer::flatten(const Value& value, const std::string& key) {
  if (value.is_map() && !value.entries().empty()) {
    for (const Value::Entry& e : value.entries()) flatten(e.value, config::child_path(key, e.key));
    return;
  }
  if (key.empty()) return;
  if (leave_out(key)) {
    report_.ignored.push_back({value.at(), key, kLeftOut});
    return;
  }
  if (by_key_.emplace(key, leaves_.size()).second) leaves_.push_back({key, value});
}

Importer::Leaf* Importer::leaf(std::string_view key) {
  const auto it = by_key_.find(key);
  return it == by_key_.end() ? nullptr : &leaves_[it->second];
}

const Value* Importer::find(std::string_view key) {
  asked_.emplace(key);
  Leaf* found = leaf(key);
  if (found == nullptr) return nullptr;
  found->asked = true;
  const bool absent = found->value.is_null() || (found->value.is_scalar() && !found->value.quoted() && found->value.text() == "None");
  return absent ? nullptr : &found->value;
}

std::optional<std::int64_t> Importer::integer(std::string_view key, const config::Limits& limits) {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto parsed = value->is_scalar() ? config::parse_integer(value->text()) : config::Reading<std::int64_t>{};
  const auto fits = [&](double x) { return (!limits.minimum || x > *limits.minimum || (x == *limits.minimum && !limits.above_minimum)) && (!limits.maximum || x <= *limits.maximum); };
  if (!parsed) {
    complain(key, fmt::format("needs a whole number, not {}", shown(*value)), way_out(*value, key, parsed.fix));
  } else if (!fits(static_cast<double>(*parsed.value))) {
    complain(key, fmt::format("{} is out of range ({} needs a whole number {})", *parsed.value, vocabulary_.needs, config::words_of(limits)));
  } else {
    return parsed.value;
  }
  return std::nullopt;
}

bool Importer::is_open(std::string_view key) {
  const Value* value = find(key);
  if (value == nullptr) return false;
  const auto open = [](const Value& v) { return v.is_scalar() && v.text().find_first_of("$`") != std::string::npos; };
  return open(*value) || (value->is_list() && std::any_of(value->items().begin(), value->items().end(), open));
}

std::optional<std::int64_t> Importer::integer_or_stated(std::string_view key, const std::string& scenario_key, const config::Limits& limits) {
  const auto instead = is_open(key) ? stated_integer(scenario_key) : std::nullopt;
  if (!instead) return integer(key, limits);
  use(key, fmt::format("{} of the scenario stands in its place", scenario_key));
  return instead;
}

std::optional<double> Importer::number(std::string_view key) {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto parsed = value->is_scalar() ? config::parse_number(value->text()) : config::Reading<double>{};
  if (!parsed) complain(key, fmt::format("needs a number, not {}", shown(*value)), way_out(*value, key, parsed.fix));
  return parsed.value;
}

std::optional<bool> Importer::flag(std::string_view key) {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto parsed = value->is_scalar() ? parse_flag(value->text()) : std::nullopt;
  if (!parsed) complain(key, fmt::format("needs true or false, not {}", shown(*value)));
  return parsed;
}

std::optional<std::string> Importer::word(std::string_view key) {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_scalar()) {
    complain(key, fmt::format("needs a word, not {}", shown(*value)));
    return std::nullopt;
  }
  return value->text();
}

std::vector<std::string> Importer::keys_below(std::string_view prefix) const {
  std::vector<std::string> keys;
  for (const Leaf& l : leaves_)
    if (l.key.starts_with(prefix) && l.key.size() > prefix.size() && l.key[prefix.size()] == '.') keys.push_back(l.key);
  return keys;
}

std::optional<std::string> Importer::stated(const std::string& scenario_key) const {
  const Value* value = find_dotted(context_.scenario, scenario_key);
  if (value == nullptr || !value->is_scalar()) return std::nullopt;
  return value->text();
}

std::optional<std::int64_t> Importer::stated_integer(const std::string& scenario_key) const {
  const auto text = stated(scenario_key);
  return text ? config::parse_integer(*text).value : std::nullopt;
}

config::Place Importer::place_of(std::string_view key) {
  const Leaf* found = leaf(key);
  if (found != nullptr) return found->value.place();
  return {root_.place().source, 0, 0};
}

void Importer::settle(std::string_view key) {
  if (Leaf* found = leaf(key)) found->asked = found->settled = true;
}

void Importer::set(const std::string& scenario_key, const std::string& value, std::string_view because_of, const std::string& note) {
  if (leaf(because_of) == nullptr) return assume(scenario_key, value, note.empty() ? fmt::format("{} is not given", because_of) : note);
  fragment_.set(scenario_key, value, place_of(because_of));
  if (const auto own = stated(scenario_key); own && *own != value) return use(because_of, fmt::format("{}, but {} = {} of the scenario stands in its place", value, scenario_key, *own));
  use(because_of, fmt::format("{} = {}{}{}{}", scenario_key, value, note.empty() ? "" : " (", note, note.empty() ? "" : ")"));
}

void Importer::set_list(const std::string& scenario_key, const std::vector<std::string>& items, std::string_view because_of) {
  fragment_.set_list(scenario_key, items, place_of(because_of));
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  if (leaf(because_of) == nullptr) remark(scenario_key, fmt::format("[{}] ({} is not given)", text, because_of));
  else use(because_of, fmt::format("{} = [{}]", scenario_key, text));
}

void Importer::assume(const std::string& scenario_key, const std::string& value, const std::string& why) {
  fragment_.set(scenario_key, value, {root_.place().source, 0, 0});
  report_.assumed.push_back({{}, scenario_key, fmt::format("{} ({})", value, why)});
}

void Importer::use(std::string_view key, const std::string& note) {
  settle(key);
  report_.used.push_back({location_of(key), std::string(key), note});
}

void Importer::ignore(std::string_view key, const std::string& why) {
  settle(key);
  report_.ignored.push_back({location_of(key), std::string(key), why});
}

void Importer::leave(std::string_view key, const std::string& why) {
  settle(key);
  report_.not_understood.push_back({location_of(key), std::string(key), why});
}

void Importer::refuse(std::string_view key, const std::string& what, const std::string& fix) {
  settle(key);
  const std::string advice = fix.empty() ? "Simulate without it: " + how_to_leave_out(key) : fix;
  unsimulated_.push_back({location_of(key), std::string(key), what + " cannot be simulated yet", advice, place_of(key).excerpt()});
}

void Importer::complain(std::string_view key, const std::string& problem, const std::string& fix) {
  settle(key);
  mistakes_.push_back({location_of(key), std::string(key), problem, fix, place_of(key).excerpt()});
}

void Importer::add(const Imported& other) {
  Fragment both;
  both.add(other.keys);
  both.add(fragment_.tree({}));
  fragment_ = both;
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  append(report_.used, other.report.used);
  append(report_.assumed, other.report.assumed);
  append(report_.ignored, other.report.ignored);
  append(report_.not_understood, other.report.not_understood);
  append(unsimulated_, other.unsimulated);
}

bool Importer::add_file(std::string_view key, const std::string& format, const Context& inside) {
  const std::string name = word(key).value_or("");
  std::filesystem::path path = name;
  if (path.is_relative()) path = std::filesystem::path(context_.beside) / path;
  try {
    add(import_file(path, format, inside));
  } catch (const ConfigError& e) {
    // A file that is missing is mended where it is named.
    const Diagnostic& first = e.diagnostics().front();
    if (first.at.line != 0 || !first.key.empty()) throw;
    const bool made_later = name.find('$') != std::string::npos;
    const std::string fix = made_later ? "The script writes it when it runs: name a file that is there" : first.fix;
    complain(key, fmt::format("{}: {}", path.string(), first.problem), fmt::format("{}, or {}", fix, how_to_leave_out(key)));
    return false;
  }
  use(key, "imported too");
  return true;
}

std::optional<std::string> Importer::near_key(const std::string& key, std::size_t before) {
  // In a file of another kind nothing is near; looking for it there would only cost time.
  constexpr std::size_t kMostSuggestions = 20, kLongestKey = 100;
  if (before >= kMostSuggestions || key.size() > kLongestKey) return std::nullopt;
  std::vector<std::string> names(asked_.begin(), asked_.end());
  for (const Unsimulated& u : vocabulary_.unsimulated) names.emplace_back(u.key);
  for (const Ignored& i : vocabulary_.ignored) names.emplace_back(i.key);
  return nearest_name(key, names);
}

void Importer::look_for_slips(const std::vector<const Leaf*>& unknown) {
  std::vector<std::string> names;
  for (const Leaf* l : unknown) names.push_back(l->key);
  for (Diagnostic& d : mistakes_) {
    if (d.at.line > 0) continue;   // it is there
    const auto slip = nearest_name(d.key, names);
    if (!slip) continue;
    const Leaf& l = **std::find_if(unknown.begin(), unknown.end(), [&](const Leaf* u) { return u->key == *slip; });
    Diagnostic there = l.value.diagnostic(d.problem, fmt::format("{} stands here, which is no key: did you mean {}?", l.key, d.key));
    there.key = d.key;
    d = std::move(there);
  }
}

Imported Importer::finish(const std::string& framework) {
  std::vector<const Leaf*> unknown;
  for (const Leaf& l : leaves_) {
    if (l.settled) continue;
    const auto ignored = std::find_if(vocabulary_.ignored.begin(), vocabulary_.ignored.end(), [&](const Ignored& i) { return matches(i.key, l.key); });
    const auto unsimulated = std::find_if(vocabulary_.unsimulated.begin(), vocabulary_.unsimulated.end(), [&](const Unsimulated& u) { return matches(u.key, l.key); });
    if (unsimulated != vocabulary_.unsimulated.end()) {
      if (one_of(unsimulated->off, l.value) || (vocabulary_.unset_is_off && is_unset(l.value)))
        ignore(l.key, fmt::format("not in use: {}", unsimulated->what));
      else
        refuse(l.key, unsimulated->what);
    } else if (ignored != vocabulary_.ignored.end()) {
      ignore(l.key, ignored->why);
    } else if (l.asked) {
      use(l.key, l.value.is_scalar() ? fmt::format("{}: changes nothing here", l.value.text()) : "changes nothing here");
    } else if (l.value.is_map()) {
      ignore(l.key, "empty");
    } else if (l.value.is_null() || (vocabulary_.unset_is_off && is_unset(l.value))) {
      ignore(l.key, "not set");
    } else {
      unknown.push_back(&l);
      const auto near = near_key(l.key, report_.not_understood.size());
      report_.not_understood.push_back({l.value.at(), l.key, near ? fmt::format("unknown key. Did you mean {}?", *near) : "unknown key"});
    }
  }
  look_for_slips(unknown);
  config::throw_if_any(std::move(mistakes_));
  Imported imported;
  imported.framework = framework;
  imported.file = root_.at().file;
  imported.keys = fragment_.tree({root_.place().source, 0, 0});
  for (auto* list : {&report_.used, &report_.ignored, &report_.not_understood})
    std::stable_sort(list->begin(), list->end(), [](const model::ImportNote& a, const model::ImportNote& b) { return earlier(a.at, b.at); });
  imported.report = std::move(report_);
  imported.unsimulated = std::move(unsimulated_);
  std::stable_sort(imported.unsimulated.begin(), imported.unsimulated.end(), [](const Diagnostic& a, const Diagnostic& b) { return earlier(a.at, b.at); });
  return imported;
}

}  // namespace rehearse::importers
