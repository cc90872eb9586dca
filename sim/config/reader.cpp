#include "sim/config/reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>

#include "sim/config/units.h"
#include "sim/core/suggestion.h"

namespace rehearse::config {

void throw_if_any(Diagnostics diagnostics) {
  if (diagnostics.empty()) return;
  std::stable_sort(diagnostics.begin(), diagnostics.end(), [](const Diagnostic& a, const Diagnostic& b) {
    return std::tie(a.at.file, a.at.line, a.at.column) < std::tie(b.at.file, b.at.line, b.at.column);
  });
  throw ConfigError(std::move(diagnostics));
}

std::optional<SourceLocation> Provenance::where(const std::string& dotted_key) const {
  const auto it = values_.find(dotted_key);
  if (it == values_.end()) return std::nullopt;
  return it->second.at();
}

Diagnostic Provenance::diagnostic(const std::string& dotted_key, std::string problem, std::string fix) const {
  std::string key = dotted_key;
  while (true) {
    if (const auto it = values_.find(key); it != values_.end()) {
      Diagnostic d = it->second.diagnostic(std::move(problem), std::move(fix));
      d.key = dotted_key;
      return d;
    }
    if (key.empty()) return {{}, dotted_key, std::move(problem), std::move(fix), ""};
    const auto cut = key.find_last_of(".[");
    key.erase(cut == std::string::npos ? 0 : cut);
  }
}

std::string words_of(const Limits& limits, std::string_view unit) {
  // Zero is zero in any unit.
  const auto text = [&](double number) { return number_text(number) + (unit.empty() || number == 0 ? "" : " ") + std::string(number == 0 ? "" : unit); };
  if (limits.minimum && limits.maximum) return fmt::format("between {} and {}", text(*limits.minimum), text(*limits.maximum));
  if (limits.minimum) return fmt::format("{} {}", limits.above_minimum ? "greater than" : "at least", text(*limits.minimum));
  if (limits.maximum) return fmt::format("at most {}", text(*limits.maximum));
  return {};
}

void FieldReader::add(Diagnostic diagnostic) {
  if (out_.size() > kMaxListedMistakes) return;
  if (out_.size() == kMaxListedMistakes)
    diagnostic = {{diagnostic.at.file, 0, 0}, "", "more mistakes follow", "Mend the ones above first", ""};
  out_.push_back(std::move(diagnostic));
}

namespace {

std::string kind_words(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::null:
      return "nothing";
    case Value::Kind::list:
      return "a list";
    case Value::Kind::map:
      return "a map";
    case Value::Kind::scalar:
      break;
  }
  return fmt::format("'{}'", value.text().substr(0, 60));
}

std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

/// Dotted keys of the tables, below `path`, that have a field called `name`.
void find_homes(const TableInfo& table, const std::string& name, const std::string& path,
                std::vector<std::string>& out) {
  for (const FieldInfo& field : table.fields) {
    const std::string here = child_path(path, field.name);
    if (field.name == name) out.push_back(here);
    if (field.shape == FieldInfo::Shape::table) find_homes(*field.table, name, here, out);
  }
}

void refuse_unknown(const Value::Entry& entry, const std::string& path, const TableInfo& table,
                    FieldReader& reader) {
  std::string fix;
  std::vector<std::string> homes;
  if (reader.root()) find_homes(*reader.root(), entry.key, "", homes);
  const std::vector<std::string> names = table.names();
  if (homes.size() == 1 && !nearest_name(entry.key, names)) fix = fmt::format("It belongs at {}", homes[0]);
  if (fix.empty()) fix = did_you_mean(entry.key, names);
  if (fix.empty()) fix = fmt::format("Keys here: {}", listed(names));
  reader.add({entry.key_place.location(), child_path(path, entry.key), "unknown key", fix,
              entry.key_place.excerpt()});
}

void read_field(const FieldInfo& field, const Value& value, void* object, FieldReader& reader) {
  reader.note(value);
  if (!field.word.empty() && value.is_scalar() && value.text() == field.word) return field.clear(object);
  reader.or_word = field.word.empty() ? "" : fmt::format(" or '{}'", field.word);
  field.assign(expanded(value, field.shorthand), object, reader);
  reader.or_word.clear();
}

}  // namespace

const std::string* FieldReader::scalar(const Value& value, const std::string& needed, bool quotes_allowed) {
  if (!value.is_scalar()) {
    complain(value, fmt::format("needs {}{}, not {}", needed, or_word, kind_words(value)),
             value.is_null() ? "Write a value, or remove the key" : value.is_list() ? "Write one value, without brackets" : "");
    return nullptr;
  }
  if (value.quoted() && !quotes_allowed) {
    complain(value, fmt::format("needs {}{}, not text in quotes", needed, or_word), "Remove the quotes");
    return nullptr;
  }
  return &value.text();
}

const FieldInfo* TableInfo::find(const std::string& name) const {
  for (const FieldInfo& field : fields)
    if (field.name == name) return &field;
  return nullptr;
}

std::vector<std::string> TableInfo::names() const {
  std::vector<std::string> out;
  for (const FieldInfo& field : fields) out.push_back(field.name);
  return out;
}

void read_table(const Value& map, const TableInfo& table, void* object, FieldReader& reader) {
  reader.note(map);
  if (!map.is_map() && !map.is_null()) {
    reader.complain(map, fmt::format("needs 'key: value' lines, not {}", kind_words(map)),
                    fmt::format("Keys here: {}", listed(table.names())));
    return;
  }
  const std::size_t before = reader.mistakes();
  for (const Value::Entry& entry : map.entries()) {
    if (const FieldInfo* field = table.find(entry.key))
      read_field(*field, entry.value, object, reader);
    else
      refuse_unknown(entry, map.path(), table, reader);
  }
  if (reader.amending) return;
  for (const FieldInfo& field : table.fields) {
    if (!field.required || map.find(field.name)) continue;
    Diagnostic missing = map.diagnostic(fmt::format("missing ({})", field.doc),
                                        fmt::format("Write {}: <{}>", field.name, field.type.words));
    missing.key = child_path(map.path(), field.name);
    reader.add(std::move(missing));
  }
  // Rules over several keys make sense only when each key does.
  if (table.check && reader.mistakes() == before) table.check(map, object, reader);
}

Value differences(const void* object, const void* other, const TableInfo& fields, const std::string& path) {
  std::vector<Value::Entry> entries;
  for (const FieldInfo& field : fields.fields) {
    if (!field.texts) continue;
    const std::vector<std::string> texts = field.texts(object);
    const bool list = field.shape == FieldInfo::Shape::list;
    if (texts == field.texts(other) || (texts.empty() && !list)) continue;
    const std::string key = child_path(path, field.name);
    std::vector<Value> items;
    for (const std::string& text : texts) items.push_back(Value::scalar(text, false, {}, key));
    entries.push_back({field.name, {}, list ? Value::list(std::move(items), {}, key) : std::move(items.front())});
  }
  return entries.empty() ? Value() : Value::map(std::move(entries), {}, path);
}

Value expanded(const Value& value, const std::string& shorthand) {
  if (shorthand.empty() || !value.is_scalar()) return value;
  Value inner =
      Value::scalar(value.text(), value.quoted(), value.place(), child_path(value.path(), shorthand));
  return Value::map({{shorthand, value.place(), std::move(inner)}}, value.place(), value.path());
}

void read_list(const Value& list, const std::string& words, FieldReader& reader,
               const std::function<void(const Value&)>& item) {
  if (!list.is_list()) {
    reader.complain(list,
                    fmt::format("needs a list of {}{}, not {}", words, reader.or_word, kind_words(list)),
                    list.is_scalar() ? fmt::format("Write [{}]", list.text().substr(0, 60)) : "");
    return;
  }
  reader.or_word.clear();
  for (const Value& value : list.items()) {
    reader.note(value);
    item(value);
  }
}

void read_map(const Value& map, FieldReader& reader, const std::function<void(const Value::Entry&)>& entry) {
  if (!map.is_map() && !map.is_null()) {
    reader.complain(map, fmt::format("needs 'name: ...' lines{}, not {}", reader.or_word, kind_words(map)));
    return;
  }
  reader.or_word.clear();
  for (const Value::Entry& e : map.entries()) {
    reader.note(e.value);
    entry(e);
  }
}

}  // namespace rehearse::config
