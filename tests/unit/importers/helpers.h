// What the tests of this room share: an import from text, its keys as dotted text, and where a key of the file went.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "sim/importers/fragment.h"
#include "sim/importers/import_file.h"
#include "tests/support/error_of.h"

namespace rehearse::importers {

/// A scenario on one node of eight GPUs with a model of width 4,096 and 32 layers.
inline Context eight_gpus() {
  Context c;
  c.gpus = 8;
  c.gpus_per_node = 8;
  c.hidden = 4096;
  c.layers = 32;
  return c;
}

/// The text of a dotted scenario key; lists as [a, b]; "-" when the import does not set it.
inline std::string key(const Imported& i, const std::string& dotted) {
  const config::Value* v = find_dotted(i.keys, dotted);
  if (v == nullptr) return "-";
  if (!v->is_list()) return v->text();
  std::string out;
  for (const config::Value& item : v->items()) out += (out.empty() ? "" : ", ") + item.text();
  return "[" + out + "]";
}

/// Where a key of the file ended up: used, ignored, not understood, not simulated; "-" when nowhere.
inline std::string fate(const Imported& i, const std::string& name) {
  std::string out;
  const auto look = [&](const char* list, const auto& notes) {
    for (const auto& n : notes)
      if (n.key == name) {
        if (out != list) out += (out.empty() ? "" : " and ") + std::string(list);
        return;
      }
  };
  look("used", i.report.used);
  look("ignored", i.report.ignored);
  look("not understood", i.report.not_understood);
  look("not simulated", i.unsimulated);
  return out.empty() ? "-" : out;
}

/// What the report says of a key that was used; "" where it was not.
inline std::string note_of(const Imported& i, const std::string& name) {
  for (const auto& n : i.report.used)
    if (n.key == name) return n.note;
  return {};
}

/// Every leaf of the file stands in exactly one list of the report.
inline void expect_complete(const Imported& i, const config::Value& v, const std::string& path = {}) {
  if (v.is_map() && !v.entries().empty()) {
    for (const config::Value::Entry& e : v.entries()) expect_complete(i, e.value, config::child_path(path, e.key));
  } else if (!path.empty()) {
    const std::string f = fate(i, path);
    EXPECT_TRUE(f == "used" || f == "ignored" || f == "not understood" || f == "not simulated") << path << " is " << f;
  }
}

}  // namespace rehearse::importers
