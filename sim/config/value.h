// A value as a user wrote it: null, scalar, list or map, immutable, each with its file, line, column and key.
// Leaves out the file format it came from (document.h) and what it should be (fields.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/config/text_file.h"

namespace rehearse::config {

/// A cheap handle: copies share one constant tree.
class Value {
 public:
  enum class Kind : unsigned char { null, scalar, list, map };
  struct Entry;

  /// Null, from nowhere.
  Value();
  static Value null(Place place, std::string path);
  static Value scalar(std::string text, bool quoted, Place place, std::string path);
  static Value list(std::vector<Value> items, Place place, std::string path);
  /// Precondition: the keys are different.
  static Value map(std::vector<Entry> entries, Place place, std::string path);

  Kind kind() const;
  bool is_null() const { return kind() == Kind::null; }
  bool is_scalar() const { return kind() == Kind::scalar; }
  bool is_list() const { return kind() == Kind::list; }
  bool is_map() const { return kind() == Kind::map; }

  /// The characters of a scalar; "" for the others. `010`, `yes` and `1e6` are still what was typed.
  const std::string& text() const;
  /// The scalar stood in quotes or in a block (|, >), so it was meant as text.
  bool quoted() const;
  /// Items of a list, in file order; none for the others.
  const std::vector<Value>& items() const;
  /// Entries of a map, in file order; none for the others.
  const std::vector<Entry>& entries() const;
  /// The value of a key; null pointer when absent or when this is no map.
  const Value* find(std::string_view key) const;
  /// The same with the key's own place.
  const Entry* find_entry(std::string_view key) const;

  const Place& place() const;
  SourceLocation at() const { return place().location(); }
  /// Dotted key from the top of the file: "parallelism.tensor", "stages[2].layers"; "" at the top.
  const std::string& path() const;

  /// A mistake in this value.
  Diagnostic diagnostic(std::string problem, std::string fix = {}) const;

 private:
  struct Node;
  explicit Value(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  std::shared_ptr<const Node> node_;
};

struct Value::Entry {
  std::string key;
  Place key_place;
  Value value;
};

/// The dotted key of a child: ("", "a") -> "a", ("a", "b") -> "a.b"; of an item: ("a", 2) -> "a[2]".
std::string child_path(const std::string& parent, std::string_view key);
std::string child_path(const std::string& parent, std::size_t index);

/// Same kinds, keys, order and texts; places and quotes may differ.
bool same_content(const Value& a, const Value& b);

/// The value as YAML text that reads back to the same content; ends with a line break.
std::string to_yaml(const Value& value);

}  // namespace rehearse::config
