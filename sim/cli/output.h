// Where output goes: results to stdout, everything else to stderr, files whole or not at all; colour only for people.
// Leaves out what is written (sim/report).
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace rehearse::cli {

/// Writes a result. Throws EnvironmentError when stdout is full or closed for another reason than a reader that left.
void print(std::string_view text);
/// Writes a message for people; never fails.
void say(std::string_view text);

/// A reader that leaves early (`| head`) ends the program silently; a file beyond `ulimit -f` is a write that fails, as on a full disk.
void set_signals();

enum class Channel { out, err };
/// Colours make sense: a terminal, and none of NO_COLOR and TERM=dumb; FORCE_COLOR and CLICOLOR_FORCE insist.
bool use_colour(Channel channel);
bool is_terminal(Channel channel);

/// Throws EnvironmentError when the disk or what one may use of it is full, or it is broken; ConfigError for any other reason (`error`, of errno.h).
[[noreturn]] void cannot_write(const std::string& path, int error);

/// Makes the folder and those that it lies in, where they are not there yet. Throws what cannot_write does.
void make_folder(const std::string& path);

/// Writes `path` through a temporary file beside it that is renamed when it is complete: never half a file under the
/// name. "-" and /dev/stdout mean stdout. Throws ConfigError when the file cannot be made, EnvironmentError on a full disk.
void write_file(const std::string& path, const std::function<void(std::ostream&)>& write);
void write_file(const std::string& path, std::string_view text);
/// Throws what write_file would throw for a folder that is missing or closed: before an hour of work, not after.
void check_writable(const std::string& path);
/// check_writable for each that is not empty; ConfigError also where two are one file, or one is a file that is read.
void check_outputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs);

}  // namespace rehearse::cli
