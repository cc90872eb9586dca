#include "sim/core/error.h"

namespace rehearse {

std::string to_string(const SourceLocation& at) {
  if (at.file.empty()) return {};
  if (at.line == 0) return at.file;
  return at.file + ":" + std::to_string(at.line) + ":" + std::to_string(at.column);
}

std::string to_string(const Diagnostic& d) {
  std::string text = to_string(d.at);
  if (!text.empty()) text += ": ";
  if (!d.key.empty()) text += d.key + ": ";
  text += d.problem;
  if (!d.fix.empty()) text += ". " + d.fix;
  return text;
}

ConfigError::ConfigError(std::vector<Diagnostic> diagnostics) : diagnostics_(std::move(diagnostics)) {
  for (const Diagnostic& d : diagnostics_) {
    if (!text_.empty()) text_ += '\n';
    text_ += to_string(d);
  }
}

}  // namespace rehearse
