// Turns values into typed members while collecting every mistake, and notes which keys were given.
// Leaves out which fields exist: tables of them are written with fields.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/config/value.h"
#include "sim/core/error.h"

namespace rehearse::config {

using Diagnostics = std::vector<Diagnostic>;
inline constexpr std::size_t kMaxListedMistakes = 100;

/// Throws ConfigError with all of them, sorted by file and line, if there are any.
void throw_if_any(Diagnostics diagnostics);

/// Which keys the user wrote, and where: so that rules checked long after reading can point at the line.
class Provenance {
 public:
  void note(const Value& value) { values_.insert_or_assign(value.path(), value); }
  /// The key itself was written (not defaulted).
  bool given(const std::string& dotted_key) const { return values_.count(dotted_key) != 0; }
  std::optional<SourceLocation> where(const std::string& dotted_key) const;
  /// A mistake in a key, placed at the key or, when it was defaulted, at the nearest map above it.
  Diagnostic diagnostic(const std::string& dotted_key, std::string problem, std::string fix = {}) const;
  const std::map<std::string, Value>& values() const { return values_; }

 private:
  std::map<std::string, Value> values_;
};

/// Bounds of a number, in the base unit for quantities (bytes, bytes/s, seconds, FLOP/s, hertz, watts).
struct Limits {
  std::optional<double> minimum = {};
  std::optional<double> maximum = {};
  bool above_minimum = false;  // the minimum itself is refused
};
inline constexpr Limits any_value{};
inline constexpr Limits positive{0.0, std::nullopt, true};
inline constexpr Limits non_negative{0.0, std::nullopt, false};
constexpr Limits at_least(double minimum) { return {minimum, std::nullopt, false}; }
constexpr Limits between(double minimum, double maximum) { return {minimum, maximum, false}; }
std::string words_of(const Limits& limits, std::string_view unit = {});

struct TableInfo;

class FieldReader {
 public:
  FieldReader(Diagnostics& out, Provenance* given, const TableInfo* root)
      : out_(out), given_(given), root_(root) {}

  void complain(const Value& value, std::string problem, std::string fix = {}) {
    add(value.diagnostic(std::move(problem), std::move(fix)));
  }
  void add(Diagnostic diagnostic);
  std::size_t mistakes() const { return out_.size(); }
  void note(const Value& value) {
    if (given_) given_->note(value);
  }
  /// The table at the top of the file: knows where a misplaced key belongs.
  const TableInfo* root() const { return root_; }
  /// The plain scalar's text; complains about lists, maps, nulls and, unless allowed, quotes.
  const std::string* scalar(const Value& value, const std::string& needed, bool quotes_allowed);
  /// ", or auto" while the field being read takes a word instead of a value.
  std::string or_word;
  /// The map changes an object that is whole already: no key is missing, and rules over several keys are not checked.
  bool amending = false;

 private:
  Diagnostics& out_;
  Provenance* given_;
  const TableInfo* root_;
};

/// How values of one type are read, shown, and described. The target's real type is known to the maker alone.
struct ScalarType {
  std::string words;                                              // for people: "integer, at least 1"
  std::string schema;                                             // a JSON Schema (draft-07)
  std::vector<std::pair<std::string, std::string>> choices = {};  // word, meaning
  std::function<bool(const Value&, void* target, FieldReader&)> read;
  std::function<std::string(const void* target)> show;  // as the user would write it
};

/// One row of a table, for a struct whose type only `assign` and `clear` know.
struct FieldInfo {
  enum class Shape : std::uint8_t { scalar, list, table, table_list, table_map, custom };
  std::string name;
  std::string doc;
  Shape shape = Shape::scalar;
  bool required = false;
  std::string unless = {};        // for schemas: a dotted key whose presence can stand in for this one
  std::string default_text = {};  // "" when there is none
  std::string word = {};          // a word that stands for "no value": auto, unlimited
  std::string shorthand = {};     // a bare scalar stands for this key of the sub-table
  ScalarType type = {};           // of the scalar, the list's items or the custom field
  std::shared_ptr<const TableInfo> table = {};
  std::function<void(const Value&, void* object, FieldReader&)> assign = {};
  std::function<void(void* object)> clear = {};
  /// The member as the user would write it: one text, of a list one per item, none where it is absent. Of scalars and lists of them.
  std::function<std::vector<std::string>(const void* object)> texts = {};
};

struct TableInfo {
  std::vector<FieldInfo> fields;
  std::function<void(const Value&, const void* object, FieldReader&)> check = {};
  const FieldInfo* find(const std::string& name) const;
  std::vector<std::string> names() const;
};

/// Reads a map (null counts as an empty one) into the object; mistakes go to the reader.
void read_table(const Value& map, const TableInfo& table, void* object, FieldReader& reader);
/// See differences() of fields.h.
Value differences(const void* object, const void* other, const TableInfo& table, const std::string& path);
/// The value that a bare scalar stands for: {shorthand: scalar}; other values as they are.
Value expanded(const Value& value, const std::string& shorthand);
/// Calls `item` for each item, or complains that it is no list (of `words`).
void read_list(const Value& list, const std::string& words, FieldReader& reader,
               const std::function<void(const Value&)>& item);
/// Calls `entry` for each entry, or complains that it is no map.
void read_map(const Value& map, FieldReader& reader, const std::function<void(const Value::Entry&)>& entry);

}  // namespace rehearse::config
