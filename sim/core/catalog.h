// A named list of interchangeable implementations: the one visible place where each is announced.
// The same table serves YAML look-up, `list`, the reference page and the tests.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace rehearse {

template <typename Value>
class Catalog {
 public:
  struct Entry {
    std::string name;
    std::string summary;
    Value value;
  };

  Catalog(std::string what, std::initializer_list<Entry> entries) : what_(std::move(what)), entries_(entries) {}

  /// What the entries are, in the user's words: "pipeline schedule".
  const std::string& what() const { return what_; }
  const std::vector<Entry>& entries() const { return entries_; }

  /// Null when there is no such entry: the caller knows the place in the user's file and reports it.
  const Value* find(std::string_view name) const {
    for (const Entry& entry : entries_)
      if (entry.name == name) return &entry.value;
    return nullptr;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const Entry& entry : entries_) out.push_back(entry.name);
    return out;
  }

 private:
  std::string what_;
  std::vector<Entry> entries_;
};

}  // namespace rehearse
