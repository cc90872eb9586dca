// Scenario keys under construction: dotted keys with values that keep the place of the user's file.
// Leaves out which keys exist (sim/scenario/scenario_file.cpp).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/config/value.h"

namespace rehearse::importers {

class Fragment {
 public:
  /// A later value of the same key replaces the earlier one.
  void set(const std::string& key, std::string text, const config::Place& place);
  void set_list(const std::string& key, const std::vector<std::string>& items, const config::Place& place);
  /// Everything that `keys` holds, key by key.
  void add(const config::Value& keys);
  bool has(const std::string& key) const { return values_.contains(key); }
  /// Null pointer when the key is not set; valid until the next change.
  const config::Value* find(const std::string& key) const;
  void remove(const std::string& key) { values_.erase(key); }
  /// As a tree; maps have the place `origin`.
  config::Value tree(const config::Place& origin) const;

 private:
  std::map<std::string, config::Value> values_;  // dotted key -> scalar or list
};

/// The value of a dotted key in a tree of maps; null pointer when absent.
const config::Value* find_dotted(const config::Value& root, std::string_view key);

}  // namespace rehearse::importers
