#include "sim/config/text_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "sim/core/suggestion.h"

namespace rehearse::config {

namespace fs = std::filesystem;

SourceText::SourceText(std::string file_name, std::string content)
    : file_(std::move(file_name)), text_(std::move(content)), line_starts_{0} {
  for (std::size_t i = 0; i < text_.size(); ++i)
    if (text_[i] == '\n') line_starts_.push_back(i + 1);
}

std::string_view SourceText::line(int number) const {
  if (number < 1 || static_cast<std::size_t>(number) > line_starts_.size()) return {};
  const auto n = static_cast<std::size_t>(number);
  const std::size_t begin = line_starts_[n - 1];
  const std::size_t end = n < line_starts_.size() ? line_starts_[n] - 1 : text_.size();
  std::string_view line = std::string_view(text_).substr(begin, end - begin);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

SourceLocation Place::location() const {
  if (!source) return {};
  return {source->file(), line, column};
}

std::string Place::excerpt() const {
  if (!source) return {};
  if (line == 0) return {};
  std::string_view whole = source->line(line);
  if (whole.size() <= 200) return std::string(whole);
  std::size_t cut = 200;
  while (cut > 0 && (static_cast<unsigned char>(whole[cut]) & 0xC0) == 0x80) --cut;  // not inside a character
  return std::string(whole.substr(0, cut)) + "...";
}

namespace {

[[noreturn]] void refuse(const fs::path& path, std::string problem, std::string fix) {
  throw ConfigError(Diagnostic{{path.string(), 0, 0}, "", std::move(problem), std::move(fix), ""});
}

std::string near_file_name(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code error;
  if (!fs::is_directory(folder, error)) return fmt::format("The folder {} does not exist", folder.string());
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end && names.size() < 2000;
       it.increment(error))
    names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());  // the folder's own order differs between machines
  if (const auto near = nearest_name(path.filename().string(), names))
    return fmt::format("Did you mean {}?", (path.parent_path() / *near).string());
  return "Check the path";
}

struct Closer {
  void operator()(std::FILE* f) const { std::fclose(f); }
};

/// Length of the UTF-8 character at `i`, or 0 when the bytes there are none (overlong and surrogates
/// included).
std::size_t utf8_length(const std::string& s, std::size_t i) {
  const auto byte = [&](std::size_t k) -> unsigned {
    return k < s.size() ? static_cast<unsigned char>(s[k]) : 0u;
  };
  const auto tail = [&](std::size_t k) { return (byte(k) & 0xC0) == 0x80; };
  const unsigned a = byte(i);
  if (a < 0x80) return a == 0 ? 0 : 1;
  if (a >= 0xC2 && a <= 0xDF) return tail(i + 1) ? 2 : 0;
  if (a >= 0xE0 && a <= 0xEF) {
    if (!tail(i + 1) || !tail(i + 2)) return 0;
    if (a == 0xE0 && byte(i + 1) < 0xA0) return 0;
    if (a == 0xED && byte(i + 1) > 0x9F) return 0;
    return 3;
  }
  if (a >= 0xF0 && a <= 0xF4) {
    if (!tail(i + 1) || !tail(i + 2) || !tail(i + 3)) return 0;
    if (a == 0xF0 && byte(i + 1) < 0x90) return 0;
    if (a == 0xF4 && byte(i + 1) > 0x8F) return 0;
    return 4;
  }
  return 0;
}

}  // namespace

std::string read_text_file(const fs::path& path, std::size_t limit) {
  if (path.native().find('\0') != std::string::npos)
    refuse("", "a file name holds a NUL byte", "Check the path");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) refuse(path, "no such file", path == "-" ? "Name /dev/stdin to read from standard input" : near_file_name(path));
  if (fs::is_directory(status)) refuse(path, "is a folder, not a file", "Name a file in it");
  const std::unique_ptr<std::FILE, Closer> file(std::fopen(path.c_str(), "rb"));
  if (!file) refuse(path, fmt::format("cannot be read ({})", std::strerror(errno)), "");

  const auto too_large = [&] {
    refuse(path, fmt::format("is larger than {} MiB, the limit for this kind of file", limit >> 20),
           "Is it the file you meant?");
  };
  if (fs::is_regular_file(status) && fs::file_size(path, error) > limit && !error) too_large();

  // Read in pieces and stop at the limit: pipes and devices have no size to ask for first.
  std::string text;
  std::string piece(1 << 16, '\0');
  while (const std::size_t n = std::fread(piece.data(), 1, piece.size(), file.get())) {
    if (text.size() + n > limit) too_large();
    text.append(piece, 0, n);
  }
  if (std::ferror(file.get())) refuse(path, fmt::format("cannot be read ({})", std::strerror(errno)), "");
  return text;
}

std::string checked_utf8(std::string text, const std::string& file) {
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  int line = 1;
  int column = 1;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text, i);
    if (length == 0) {
      const unsigned byte = static_cast<unsigned char>(text[i]);
      throw ConfigError(Diagnostic{{file, line, column},
                                   "",
                                   byte == 0
                                       ? std::string("holds a NUL byte (is it a binary or UTF-16 file?)")
                                       : fmt::format("byte 0x{:02X} is not UTF-8 text", byte),
                                   "Save the file as UTF-8",
                                   ""});
    }
    if (text[i] == '\n') {
      ++line;
      column = 1;
    } else {
      ++column;
    }
    i += length;
  }
  return text;
}

}  // namespace rehearse::config
