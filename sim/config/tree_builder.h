// Builds a value tree from YAML events, refusing what YAML allows and people do not mean.
// Leaves out the syntax itself (yaml-cpp's parser sends the events) and files (document.h).
#pragma once

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/mark.h>

#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sim/config/document.h"
#include "sim/config/value.h"

namespace rehearse::config {

/// Thrown inside the parser when going on would be useless; the reason is already among the diagnostics.
struct BuildStopped {};

class TreeBuilder final : public YAML::EventHandler {
 public:
  /// `located` false: values know only the source's name, not lines.
  TreeBuilder(std::shared_ptr<const SourceText> source, std::string root_path, bool located, Dialect dialect);

  const Value& root() const { return root_; }
  std::vector<Diagnostic>& diagnostics() { return diagnostics_; }
  /// Call when the parser has finished: complains about what it let pass.
  void finish();
  /// yaml-cpp counts lines and columns from 0 and columns in bytes; people count from 1, in characters.
  Place place(const YAML::Mark& mark);

  void OnDocumentStart(const YAML::Mark& mark) override;
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override;
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override;
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override;
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override;
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override;
  void OnMapEnd() override { close(); }

 private:
  struct Frame {
    Value::Kind kind;
    Place place;
    std::string path;
    YAML::anchor_t anchor;
    std::vector<Value> items = {};
    std::vector<Value::Entry> entries = {};
    std::unordered_map<std::string, int> key_lines = {};
    // The key whose value comes next. A refused key still swallows its value.
    std::optional<std::string> key = {};
    Place key_place = {};
    int key_position = -1;  // in bytes; -1 for an alias
    bool refused = false;
    bool repeats = false;                         // it has a value already
    bool merges = false;                          // it is `<<`
    std::vector<Value::Entry> merged = {};        // what that brought
    std::unordered_set<std::string> merged_keys = {};
  };

  void open(Value::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor);
  void close();
  void take(Value value);
  void merge(Frame& into, const Value& from);
  void take_key(const std::string& key, bool quoted, const Place& at, int position);
  bool expects_key() const;
  bool key_has_colon() const;
  std::size_t end_of_quoted(std::size_t position) const;
  std::string next_path() const;
  void remember(YAML::anchor_t anchor, const Value& value);
  Value copy(const Value& value, const Place& at, const std::string& path);
  void charge(const Place& at, std::size_t bytes);
  void refuse_tag(const std::string& tag, const Place& at);
  void complain(const Place& at, std::string key, std::string problem, std::string fix);
  [[noreturn]] void stop(const Place& at, std::string key, std::string problem, std::string fix);

  std::shared_ptr<const SourceText> source_;
  std::string root_path_;
  bool located_;
  Dialect dialect_;
  Value root_;
  int documents_ = 0;
  std::vector<Frame> frames_;
  std::unordered_map<YAML::anchor_t, Value> anchors_;
  std::vector<Diagnostic> diagnostics_;
  int last_quoted_ = -1;  // byte position of the last quoted scalar, and its place
  Place last_quoted_place_;
  std::size_t nodes_ = 0;
  std::size_t bytes_ = 0;
  // Last column converted: without it a one-line file of n values would cost n^2.
  int seen_line_ = -1;
  std::size_t seen_bytes_ = 0;
  int seen_column_ = 0;
};

}  // namespace rehearse::config
