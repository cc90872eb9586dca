// The words of a shell script with their places, variables filled in. Leaves out running anything: commands, conditions
// and loops are words like others.
#pragma once

#include <string>
#include <vector>

namespace rehearse::importers {

struct ShellWord {
  std::string text;
  int line = 1, column = 1;
  bool same_line = false;   // no line break since the word before, continued lines aside
  bool ends_list = false;   // a closing bracket, semicolon or pipe
};

/// Words of at most 64 KiB after substitution; unknown variables stay as they are written.
std::vector<ShellWord> shell_words(const std::string& text);

}  // namespace rehearse::importers
