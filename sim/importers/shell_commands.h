// What $(...) stands for where no command need run to tell, and where a script finds the files that it sources.
// Leaves out everything that asks the machine.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace rehearse::importers {

/// What a word of the command comes to, its quotes taken off; nullopt where only running the script would tell.
using WordValue = std::function<std::optional<std::string>(const std::string& word)>;

/// dirname, basename, realpath and readlink, cd X && pwd, and echo "${array[*]}" with its IFS.
std::optional<std::string> printed_by(const std::string& command, const WordValue& value);

/// The bracket that closes the one at `open`, quotes respected; npos: none within 400 characters.
std::size_t closing_bracket(std::string_view text, std::size_t open);

/// A regular file: named from one of the scripts' folders, innermost first, or from the working folder.
std::optional<std::filesystem::path> sourced_file(std::string name, const std::string& script, const std::string& main_script);

/// Does its name say that it prepares the shell: a profile, an environment of Python's, a vendor's paths?
bool prepares_shell(const std::string& name);

}  // namespace rehearse::importers
