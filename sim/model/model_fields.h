// The fields of one map (a config.json, a model of ours), read by name with defaults; remembers what was
// read. Leaves out which fields there are (huggingface_*.cpp, model_file.cpp). Internal to this room.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/config/value.h"
#include "sim/model/description.h"
#include "sim/model/import_report.h"

namespace rehearse::model {

class ModelFields {
 public:
  /// Spellings of one field, newest first. All that are present count as used; the first that is not null
  /// wins.
  using Names = std::initializer_list<const char*>;

  explicit ModelFields(config::Value object) : object_(std::move(object)) {}

  /// A whole number; 5e8 is one. Without it the fallback is taken and reported, or the field is a mistake.
  std::int64_t integer(Names names, std::optional<std::int64_t> fallback = std::nullopt);
  /// A whole number where null is a value of its own: 0, "none" (no window, no query rank).
  std::int64_t integer_or_zero(const char* name, std::int64_t fallback);
  double number(Names names, double fallback);
  /// A number where null is a value of its own: 0, "none".
  double number_or_zero(const char* name, double fallback);
  bool flag(Names names, bool fallback);
  std::string word(Names names, const std::string& fallback);
  std::optional<std::vector<std::int64_t>> integers(Names names);
  std::optional<std::vector<std::string>> words(Names names);
  Activation activation(Names names, Activation fallback);

  /// Null pointer when absent or null. Marks the field as used.
  const config::Value* find(Names names);
  bool is_present(const char* name) const { return object_.find(name) != nullptr; }
  bool is_null(const char* name) const;

  /// The field is known and does not matter, because `reason`; nothing happens when it is absent.
  void ignore(Names names, const std::string& reason);
  /// Refuses a field whose value asks for something a description cannot state.
  void refuse(const char* name, const std::string& problem);
  /// Refuses the field when it is true, or a map or list with something in it.
  void refuse_if_set(const char* name, const std::string& problem);
  /// A mistake about several fields at once; reported at the object.
  void complain(const std::string& key, const std::string& problem, const std::string& fix = {});

  /// `value` is a mistake: it is not `wanted`.
  void wrong(const config::Value& value, const std::string& wanted);

  /// Sorts the fields that nobody asked for into ignored (those with a reason) and not understood, and hands
  /// over.
  ///   reason_to_ignore   why a field does not matter; null pointer when it is not known
  ImportReport take_report(const char* (*reason_to_ignore)(const std::string& key));
  std::vector<Diagnostic> take_mistakes() { return std::move(mistakes_); }
  const config::Value& object() const { return object_; }

 private:
  void assume(Names names, const std::string& value);
  void note_used(const char* name, const config::Value& value);
  std::int64_t whole_size(const config::Value& value);

  config::Value object_;
  std::set<std::string> seen_;
  ImportReport report_;
  std::vector<Diagnostic> mistakes_;
};

/// A scalar's text as a whole number / a number; nothing when it is not one.
std::optional<std::int64_t> whole_number(const std::string& text);
std::optional<double> real_number(const std::string& text);

}  // namespace rehearse::model
