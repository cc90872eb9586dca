// Reads one YAML or JSON file into a tree of values that remember where they stood (value.h).
// Leaves out `extends` and `--set` (layers.h) and what the keys mean (fields.h). Only user of yaml-cpp.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "sim/config/value.h"

namespace rehearse::config {

inline constexpr std::size_t kMaxDocumentBytes = std::size_t{16} << 20;
inline constexpr int kMaxNesting = 64;
inline constexpr std::size_t kMaxKeyBytes = 256;
/// Bounds on the tree after aliases are written out, so that a small file cannot fill the memory.
inline constexpr std::size_t kMaxNodes = 200'000;
inline constexpr std::size_t kMaxExpandedBytes = std::size_t{64} << 20;

/// `root` is null for a file without content.
struct Document {
  Value root;
  std::string file;
};

/// Throws ConfigError with every mistake found: missing, too large or binary file, bad syntax, duplicate
/// keys, merge keys (<<), tags, tabs as indentation, several documents, nesting beyond kMaxNesting, alias
/// bombs. JSON is read as the YAML it nearly is, with NaN and Infinity as plain words.
Document load_document(const std::filesystem::path& path);

/// What a file's own reader makes of keys that are given twice, and of merge keys: `strict` refuses both; PyYAML takes the
/// last of a key's values, and puts under `<<` what has no value yet.
enum class Dialect : unsigned char { strict, pyyaml };

/// As load_document, from memory. `file_name` is what messages call it.
Document parse_document(std::string text, const std::string& file_name, Dialect dialect = Dialect::strict);

/// A value without lines, e.g. from a command line: its place is `origin` alone, its key starts with `path`.
Value parse_fragment(std::string text, const std::string& origin, const std::string& path);

}  // namespace rehearse::config
