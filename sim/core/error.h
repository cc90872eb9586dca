// Mistakes that the user can fix: where, which key, what is wrong, how to mend it. All are collected, then shown.
// Leaves out printing with colours and source excerpts (sim/cli).
#pragma once

#include <exception>
#include <string>
#include <vector>

namespace rehearse {

/// A place in a user's file. Line and column count from 1; 0 means "the whole file".
struct SourceLocation {
  std::string file;
  int line = 0;
  int column = 0;
  friend bool operator==(const SourceLocation&, const SourceLocation&) = default;
};

/// "file:line:column", "file" when there is no line, or "" when there is no file.
std::string to_string(const SourceLocation& at);

/// One mistake. `problem` states what is wrong and why in brackets; `fix` is a sentence that says what to write.
struct Diagnostic {
  SourceLocation at;
  std::string key;      // dotted path, e.g. "parallelism.tensor"; may be empty
  std::string problem;
  std::string fix;
  std::string excerpt;  // the source line, when known
};

/// "file:line:column: key: problem. fix"
std::string to_string(const Diagnostic& diagnostic);

/// Thrown with every mistake found; cli prints them all and exits with 2.
class ConfigError : public std::exception {
 public:
  explicit ConfigError(std::vector<Diagnostic> diagnostics);
  explicit ConfigError(Diagnostic diagnostic) : ConfigError(std::vector<Diagnostic>{std::move(diagnostic)}) {}
  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::vector<Diagnostic> diagnostics_;
  std::string text_;
};

}  // namespace rehearse
