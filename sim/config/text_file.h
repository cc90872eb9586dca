// Reads a text file that a user named, with limits, and remembers its lines so that errors can quote them.
// Leaves out what the text means (document.h, csv.h).
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/error.h"

namespace rehearse::config {

/// The text a value came from. `file` is what the user should read in messages: a path, or "--set key".
class SourceText {
 public:
  SourceText(std::string file_name, std::string content);
  const std::string& file() const { return file_; }
  const std::string& text() const { return text_; }
  /// The bytes of line `number` (from 1) without its line break; empty when there is no such line.
  std::string_view line(int number) const;

 private:
  std::string file_;
  std::string text_;
  std::vector<std::size_t> line_starts_;
};

/// A place in a text. Line 0 means the whole text. Columns count characters (code points), not bytes.
struct Place {
  std::shared_ptr<const SourceText> source;
  int line = 0;
  int column = 0;

  SourceLocation location() const;
  /// The line, cut after 200 bytes: a one-line JSON file would fill the screen.
  std::string excerpt() const;
};

/// The content of a file of at most `limit` bytes. Never holds more than `limit` bytes in memory.
/// Throws ConfigError: no such file (with the nearest name in its folder), a folder, too large, unreadable.
std::string read_text_file(const std::filesystem::path& path, std::size_t limit);

/// Removes a byte-order mark; throws ConfigError at the first byte that is not UTF-8, or is NUL.
std::string checked_utf8(std::string text, const std::string& file);

}  // namespace rehearse::config
