#include "sim/cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "sim/cli/subcommand.h"
#include "sim/core/error.h"

namespace rehearse::cli {
namespace fs = std::filesystem;

void print(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  if (errno == EPIPE) std::_Exit(128 + SIGPIPE);
  throw EnvironmentError(fmt::format("the answer cannot be written to standard output ({})", std::strerror(errno)));
}

void say(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void end_quietly_on_broken_pipe() { std::signal(SIGPIPE, SIG_DFL); }

bool is_terminal(Channel channel) { return isatty(channel == Channel::out ? STDOUT_FILENO : STDERR_FILENO) != 0; }

bool use_colour(Channel channel) {
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0';
  };
  if (set("NO_COLOR")) return false;
  for (const char* name : {"FORCE_COLOR", "CLICOLOR_FORCE"})
    if (set(name) && std::string_view(std::getenv(name)) != "0") return true;
  const char* terminal = std::getenv("TERM");
  return is_terminal(channel) && !(terminal != nullptr && std::string_view(terminal) == "dumb");
}

namespace {

[[noreturn]] void cannot_write(const std::string& path, int error) {
  if (error == ENOSPC || error == EIO || error == EDQUOT) throw EnvironmentError(fmt::format("{} cannot be written ({})", path, std::strerror(error)));
  throw ConfigError(Diagnostic{{path, 0, 0}, "", fmt::format("cannot be written ({})", std::strerror(error)), "Name a file in a folder that exists and that you may write to", ""});
}

}  // namespace

void write_file(const std::string& path, const std::function<void(std::ostream&)>& write) {
  std::error_code ignored;
  if (path == "-" || path == "/dev/stdout") {
    std::ostringstream text;
    write(text);
    print(text.str());
    return;
  }
  if (path.empty()) throw ConfigError(Diagnostic{{}, "", "an output file without a name", "Name a file", ""});
  if (fs::is_directory(path, ignored)) cannot_write(path, EISDIR);
  // Devices and pipes cannot be renamed onto.
  const bool special = fs::exists(path, ignored) && !fs::is_regular_file(path, ignored);
  // A link stays a link: what it names is replaced.
  const fs::path target = fs::is_symlink(path, ignored) ? fs::weakly_canonical(path, ignored) : fs::path(path);
  const std::string temporary = special ? path : fmt::format("{}.{}.part", target.string(), getpid());
  errno = 0;
  {
    std::ofstream out(temporary, std::ios::binary);
    if (!out) cannot_write(path, errno);
    write(out);
    out.flush();
    if (!out) {
      const int error = errno != 0 ? errno : EIO;
      out.close();
      if (!special) fs::remove(temporary, ignored);
      cannot_write(path, error);
    }
  }
  if (special) return;
  std::error_code failed;
  fs::rename(temporary, target, failed);
  if (failed) {
    fs::remove(temporary, ignored);
    cannot_write(path, failed.value());
  }
}

void check_writable(const std::string& path) {
  std::error_code ignored;
  if (path == "-" || path == "/dev/stdout") return;
  if (fs::is_directory(path, ignored)) cannot_write(path, EISDIR);
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored)) return;
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  errno = 0;
  if (access(folder.c_str(), W_OK | X_OK) != 0) cannot_write(path, errno);
}

void write_file(const std::string& path, std::string_view text) {
  write_file(path, [&](std::ostream& out) { out << text; });
}

}  // namespace rehearse::cli
