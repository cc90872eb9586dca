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

void set_signals() {
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGXFSZ, SIG_IGN);
}

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

void cannot_write(const std::string& path, int error) {
  if (error == ENOSPC || error == EIO || error == EDQUOT || error == EFBIG) throw EnvironmentError(fmt::format("{} cannot be written ({})", path, std::strerror(error)));
  throw ConfigError(Diagnostic{{path, 0, 0}, "", fmt::format("cannot be written ({})", std::strerror(error)), "Name a file in a folder that exists and that you may write to", ""});
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) cannot_write(path, error.value());
}

namespace {

/// An empty file beside `target` that nobody else writes: other threads, and processes of other machines that have the same
/// number there, may be writing the same target. It is removed again unless it is kept.
class Temporary {
 public:
  Temporary(const fs::path& target, const std::string& path) {
    for (int k = 0;; ++k) {
      name_ = fmt::format("{}.{}-{}.part", target.string(), getpid(), k);
      const int file = open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (file < 0 && errno == EEXIST && k < 10'000) continue;
      if (file < 0) cannot_write(path, errno);
      close(file);
      return;
    }
  }
  ~Temporary() {
    std::error_code ignored;
    if (!kept_) fs::remove(name_, ignored);
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  const std::string& name() const { return name_; }
  void becomes(const fs::path& target, const std::string& path) {
    std::error_code failed;
    fs::rename(name_, target, failed);
    if (failed) cannot_write(path, failed.value());
    kept_ = true;
  }

 private:
  std::string name_;
  bool kept_ = false;
};

void write_and_flush(const std::string& file, const std::string& path, const std::function<void(std::ostream&)>& write) {
  errno = 0;
  std::ofstream out(file, std::ios::binary);
  if (!out) cannot_write(path, errno);
  write(out);
  out.flush();
  if (!out) cannot_write(path, errno != 0 ? errno : EIO);
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
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored)) return write_and_flush(path, path, write);
  // A link stays a link: what it names is replaced.
  const fs::path target = fs::is_symlink(path, ignored) ? fs::weakly_canonical(path, ignored) : fs::path(path);
  Temporary temporary(target, path);
  write_and_flush(temporary.name(), path, write);
  temporary.becomes(target, path);
}

void check_writable(const std::string& path) {
  std::error_code ignored;
  if (path == "-" || path == "/dev/stdout") return;
  if (fs::is_directory(path, ignored)) cannot_write(path, EISDIR);
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored)) return;
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  if (const fs::file_status status = fs::status(folder, ignored); fs::exists(status) && !fs::is_directory(status)) cannot_write(path, ENOTDIR);
  if (access(folder.c_str(), W_OK | X_OK) != 0) cannot_write(path, errno);
}

void check_outputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs) {
  std::error_code ignored;
  const auto same = [&](const std::string& a, const std::string& b) {
    if (a == "-" || b == "-" || a.empty() || b.empty()) return false;
    if (fs::exists(a, ignored) && !fs::is_regular_file(a, ignored)) return false;   // devices take what comes
    return fs::equivalent(a, b, ignored) || fs::weakly_canonical(fs::absolute(a), ignored) == fs::weakly_canonical(fs::absolute(b), ignored);
  };
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].empty()) continue;
    for (std::size_t k = 0; k < i; ++k)
      if (same(outputs[i], outputs[k])) throw ConfigError(Diagnostic{{outputs[i], 0, 0}, "", "is named for two outputs", "Name a file for each", ""});
    for (const std::string& input : inputs)
      if (same(outputs[i], input)) throw ConfigError(Diagnostic{{outputs[i], 0, 0}, "", "is what is read: writing would destroy it", "Name another file", ""});
    check_writable(outputs[i]);
  }
}

void write_file(const std::string& path, std::string_view text) {
  write_file(path, [&](std::ostream& out) { out << text; });
}

}  // namespace rehearse::cli
