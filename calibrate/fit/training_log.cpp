// Iteration times out of training logs. Lines that do not match are other messages of the job.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "calibrate/fit/against.h"
#include "sim/core/error.h"

namespace rehearse::calibrate {
namespace {

/// The number behind `key`, digit groups and colour codes left out; null when it is not there.
std::optional<double> number_after(const std::string& line, const std::string& key) {
  const std::size_t at = line.find(key);
  if (at == std::string::npos) return std::nullopt;
  std::string digits;
  for (std::size_t i = at + key.size(); i < line.size(); ++i) {
    const char c = line[i];
    if (c == '\033') {
      while (i < line.size() && line[i] != 'm') ++i;
    } else if ((c >= '0' && c <= '9') || c == '.' || c == 'E' || c == 'e' || ((c == '-' || c == '+') && !digits.empty())) {
      digits += c;
    } else if (c == ',' && !digits.empty()) {
      continue;
    } else if (c != ' ' || !digits.empty()) {
      break;
    }
  }
  char* end = nullptr;
  const double v = std::strtod(digits.c_str(), &end);
  return digits.empty() || end == digits.c_str() || !std::isfinite(v) || v <= 0 ? std::nullopt : std::optional(v);
}

}  // namespace

TrainingLog read_training_log(const std::string& text, const std::string& file, double tokens_per_step, int gpus) {
  TrainingLog out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (const auto ms = number_after(line, "elapsed time per iteration (ms):")) {
      if (out.framework == "torchtitan") continue;
      out.framework = "megatron";
      out.seconds.push_back(*ms * 1e-3);
    } else if (line.find("step:") != std::string::npos && line.find("tps:") != std::string::npos) {
      const auto tps = number_after(line, "tps:");
      if (!tps || out.framework == "megatron" || tokens_per_step <= 0 || gpus <= 0) continue;
      out.framework = "torchtitan";
      out.seconds.push_back(tokens_per_step / (*tps * gpus));
    }
  }
  if (out.seconds.empty())
    throw ConfigError(Diagnostic{{file, 0, 0}, "", "holds no iteration times", "Give a log of Megatron ('elapsed time per iteration (ms): ...') or torchtitan ('step: ... tps: ...')", ""});
  return out;
}

double steady_seconds(const TrainingLog& log, const std::string& file) {
  const std::size_t warm = std::max<std::size_t>(2, log.seconds.size() / 5);
  if (log.seconds.size() < warm + 3) throw ConfigError(Diagnostic{{file, 0, 0}, "", fmt::format("has {} iterations, of which the first {} are warm-up", log.seconds.size(), warm), "Log at least 5 iterations", ""});
  std::vector<double> rest(log.seconds.begin() + static_cast<std::ptrdiff_t>(warm), log.seconds.end());
  std::sort(rest.begin(), rest.end());
  return rest.size() % 2 == 1 ? rest[rest.size() / 2] : (rest[rest.size() / 2 - 1] + rest[rest.size() / 2]) / 2;
}

}  // namespace rehearse::calibrate
