#include "sim/config/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace rehearse::config {

struct Value::Node {
  Kind kind = Kind::null;
  bool quoted = false;
  Place place;
  std::string path;
  std::string text;
  std::vector<Value> items;
  std::vector<Entry> entries;
  std::vector<std::uint32_t> by_key;  // entries sorted by key: a map of 100,000 keys must not cost n^2
};

Value::Value() {
  static const std::shared_ptr<const Node> nothing = std::make_shared<Node>();
  node_ = nothing;
}

Value Value::null(Place place, std::string path) {
  auto node = std::make_shared<Node>();
  node->place = std::move(place);
  node->path = std::move(path);
  return Value(std::move(node));
}

Value Value::scalar(std::string text, bool quoted, Place place, std::string path) {
  auto node = std::make_shared<Node>();
  node->kind = Kind::scalar;
  node->text = std::move(text);
  node->quoted = quoted;
  node->place = std::move(place);
  node->path = std::move(path);
  return Value(std::move(node));
}

Value Value::list(std::vector<Value> items, Place place, std::string path) {
  auto node = std::make_shared<Node>();
  node->kind = Kind::list;
  node->items = std::move(items);
  node->place = std::move(place);
  node->path = std::move(path);
  return Value(std::move(node));
}

Value Value::map(std::vector<Entry> entries, Place place, std::string path) {
  auto node = std::make_shared<Node>();
  node->kind = Kind::map;
  node->by_key.resize(entries.size());
  for (std::uint32_t i = 0; i < entries.size(); ++i) node->by_key[i] = i;
  std::sort(node->by_key.begin(), node->by_key.end(),
            [&](std::uint32_t a, std::uint32_t b) { return entries[a].key < entries[b].key; });
  node->entries = std::move(entries);
  node->place = std::move(place);
  node->path = std::move(path);
  return Value(std::move(node));
}

Value::Kind Value::kind() const { return node_->kind; }
const std::string& Value::text() const { return node_->text; }
bool Value::quoted() const { return node_->quoted; }
const std::vector<Value>& Value::items() const { return node_->items; }
const std::vector<Value::Entry>& Value::entries() const { return node_->entries; }
const Place& Value::place() const { return node_->place; }
const std::string& Value::path() const { return node_->path; }

const Value* Value::find(std::string_view key) const {
  const Entry* entry = find_entry(key);
  return entry ? &entry->value : nullptr;
}

const Value::Entry* Value::find_entry(std::string_view key) const {
  const auto& index = node_->by_key;
  const auto it = std::lower_bound(index.begin(), index.end(), key, [&](std::uint32_t i, std::string_view k) {
    return node_->entries[i].key < k;
  });
  if (it == index.end() || node_->entries[*it].key != key) return nullptr;
  return &node_->entries[*it];
}

Diagnostic Value::diagnostic(std::string problem, std::string fix) const {
  return {at(), path(), std::move(problem), std::move(fix), place().excerpt()};
}

std::string child_path(const std::string& parent, std::string_view key) {
  std::string path = parent;
  if (!path.empty()) path += '.';
  path += key;
  return path;
}

std::string child_path(const std::string& parent, std::size_t index) {
  return fmt::format("{}[{}]", parent, index);
}

bool same_content(const Value& a, const Value& b) {
  if (a.kind() != b.kind() || a.text() != b.text() || a.items().size() != b.items().size() ||
      a.entries().size() != b.entries().size())
    return false;
  for (std::size_t i = 0; i < a.items().size(); ++i)
    if (!same_content(a.items()[i], b.items()[i])) return false;
  for (std::size_t i = 0; i < a.entries().size(); ++i)
    if (a.entries()[i].key != b.entries()[i].key || !same_content(a.entries()[i].value, b.entries()[i].value))
      return false;
  return true;
}

namespace {

bool is_plain(const std::string& text) {
  const auto word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (text.empty() || text == "null" || text == "Null" || text == "NULL") return false;
  if (!word(text.front()) && !(text.size() > 1 && text.front() == '-' && word(text[1]))) return false;
  if (text.back() == ' ') return false;
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return word(c) || c == '.' || c == '-' || c == '+' || c == '/' || c == ' ';
  });
}

std::string quoted_text(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string scalar_text(const std::string& text, bool quoted) {
  return !quoted && is_plain(text) ? text : quoted_text(text);
}

void write(const Value& value, int indent, std::string& out) {
  const std::string margin(static_cast<std::size_t>(indent), ' ');
  const auto child = [&](const Value& v) {
    const bool block = !v.items().empty() || !v.entries().empty();
    out += block ? "\n" : " ";
    write(v, block ? indent + 2 : 0, out);
  };
  switch (value.kind()) {
    case Value::Kind::null:
      out += "null\n";
      return;
    case Value::Kind::scalar:
      out += scalar_text(value.text(), value.quoted()) + "\n";
      return;
    case Value::Kind::list:
      if (value.items().empty()) out += "[]\n";
      for (const Value& item : value.items()) {
        out += margin + "-";
        child(item);
      }
      return;
    case Value::Kind::map:
      if (value.entries().empty()) out += "{}\n";
      for (const Value::Entry& entry : value.entries()) {
        out += margin + scalar_text(entry.key, false) + ":";
        child(entry.value);
      }
      return;
  }
}

}  // namespace

std::string to_yaml(const Value& value) {
  std::string out;
  write(value, 0, out);
  return out;
}

}  // namespace rehearse::config
