#include "calibrate/import/xml.h"

#include <algorithm>
#include <cctype>

#include "sim/core/error.h"

namespace rehearse::calibrate {
namespace {

class Parser {
 public:
  Parser(const std::string& text, const std::string& file) : text_(text), file_(file) {}

  XmlElement document() {
    skip_misc();
    XmlElement root = element(0);
    skip_misc();
    if (at_ < text_.size()) fail("something follows the end of the document");
    return root;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    const auto end = text_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, text_.size()));
    throw ConfigError(Diagnostic{{file_, 1 + static_cast<int>(std::count(text_.begin(), end, '\n')), 1}, "", "is no XML as NCCL writes it: " + why, "Give the file that NCCL_TOPO_DUMP_FILE named, whole", ""});
  }
  int line() const { return 1 + static_cast<int>(std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n')); }
  bool starts(const char* word) const { return text_.compare(at_, std::char_traits<char>::length(word), word) == 0; }
  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  void skip_past(const char* end) {
    const std::size_t found = text_.find(end, at_);
    if (found == std::string::npos) fail(std::string("'") + end + "' is missing");
    at_ = found + std::char_traits<char>::length(end);
  }
  /// White space, comments and the declaration.
  void skip_misc() {
    for (;;) {
      skip_space();
      if (starts("<!--")) skip_past("-->");
      else if (starts("<?")) skip_past("?>");
      else return;
    }
  }
  std::string name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_' || text_[at_] == '-' || text_[at_] == ':')) ++at_;
    if (at_ == begin) fail("a name was expected");
    return text_.substr(begin, at_ - begin);
  }
  XmlElement element(int depth) {
    if (depth > 64) fail("nested too deeply");
    if (at_ >= text_.size() || text_[at_] != '<') fail("'<' was expected");
    XmlElement out;
    out.line = line();
    ++at_;
    out.name = name();
    for (;;) {
      skip_space();
      if (starts("/>")) {
        at_ += 2;
        return out;
      }
      if (starts(">")) break;
      const std::string key = name();
      skip_space();
      if (!starts("=")) fail("'=' was expected after " + key);
      ++at_;
      skip_space();
      if (!starts("\"") && !starts("'")) fail("a quoted value was expected for " + key);
      const char quote = text_[at_++];
      const std::size_t end = text_.find(quote, at_);
      if (end == std::string::npos) fail("the value of " + key + " does not end");
      out.attributes[key] = text_.substr(at_, end - at_);
      at_ = end + 1;
    }
    ++at_;
    for (;;) {
      skip_misc();
      if (starts("</")) {
        at_ += 2;
        if (name() != out.name) fail("<" + out.name + "> is closed by another name");
        skip_space();
        if (!starts(">")) fail("'>' was expected");
        ++at_;
        return out;
      }
      if (at_ >= text_.size()) fail("<" + out.name + "> is not closed");
      out.children.push_back(element(depth + 1));
    }
  }

  const std::string& text_;
  const std::string& file_;
  std::size_t at_ = 0;
};

}  // namespace

XmlElement parse_xml(const std::string& text, const std::string& file) { return Parser(text, file).document(); }

}  // namespace rehearse::calibrate
