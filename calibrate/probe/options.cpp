#include "calibrate/probe/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "sim/core/error.h"
#include "sim/core/suggestion.h"

namespace rehearse::calibrate {
namespace {

const std::vector<std::string> kNames = {"--quick", "--full", "--list", "--help", "--version", "--self-test", "--fresh", "--only", "--out",
                                         "--directory", "--meet", "--budget", "--gpus", "--target-error", "--series-cap", "--case-limit"};

Diagnostic mistake(const std::string& option, const std::string& problem, const std::string& fix) { return {{}, option, problem, fix, ""}; }

std::optional<double> number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value) || value <= 0) return std::nullopt;
  return value;
}

}  // namespace

double ProbeOptions::budget() const {
  if (budget_s) return *budget_s;
  return mode == Mode::quick ? 180 : mode == Mode::usual ? 900 : std::numeric_limits<double>::infinity();
}

std::string ProbeOptions::mode_name() const { return mode == Mode::quick ? "quick" : mode == Mode::usual ? "default" : "full"; }

SamplingRule ProbeOptions::rule() const {
  SamplingRule rule;
  if (mode == Mode::quick) rule = {.target_relative_error = 0.02, .warm_up_s = 0.02, .least_s = 0.04, .cap_s = 0.3};
  if (mode == Mode::full) rule = {.target_relative_error = 0.005, .warm_up_s = 0.1, .least_s = 0.25, .cap_s = 3};
  if (target_relative_error) rule.target_relative_error = *target_relative_error;
  if (series_cap_s) rule.cap_s = *series_cap_s;
  rule.least_s = std::min(rule.least_s, rule.cap_s);
  rule.warm_up_s = std::min(rule.warm_up_s, rule.cap_s);
  return rule;
}

ProbeOptions parse_options(const std::vector<std::string>& arguments) {
  ProbeOptions out;
  std::vector<Diagnostic> mistakes;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string name = arguments[i];
    std::optional<std::string> given;
    if (const std::size_t equals = name.find('='); name.starts_with("--") && equals != std::string::npos) {
      given = name.substr(equals + 1);
      name.resize(equals);
    }
    const auto value = [&]() -> std::string {
      if (given) return *std::exchange(given, std::nullopt);
      if (i + 1 < arguments.size()) return arguments[++i];
      mistakes.push_back(mistake(name, "needs a value", "Write " + name + " VALUE"));
      return {};
    };
    const auto positive = [&](const char* what) -> std::optional<double> {
      const std::size_t before = mistakes.size();
      const std::string text = value();
      const auto v = number(text);
      if (!v && mistakes.size() == before) mistakes.push_back(mistake(name, "\"" + text + "\" is not a number above 0", what));
      return v;
    };
    if (name == "--quick") out.mode = ProbeOptions::Mode::quick;
    else if (name == "--full") out.mode = ProbeOptions::Mode::full;
    else if (name == "--list") out.list = true;
    else if (name == "--help" || name == "-h") out.help = true;
    else if (name == "--version") out.version = true;
    else if (name == "--self-test") out.self_test = true;
    else if (name == "--fresh") out.fresh = true;
    else if (name == "--only") out.only = value();
    else if (name == "--out") out.out = value();
    else if (name == "--directory") out.directory = value();
    else if (name == "--meet") out.meet = value();
    else if (name == "--budget") out.budget_s = positive("Write seconds, for example --budget 300");
    else if (name == "--series-cap") out.series_cap_s = positive("Write seconds, for example --series-cap 0.5");
    else if (name == "--case-limit") out.case_limit_s = positive("Write seconds, for example --case-limit 300").value_or(120);
    else if (name == "--target-error") out.target_relative_error = positive("Write a fraction, for example --target-error 0.01");
    else if (name == "--gpus") {
      const auto v = positive("Write how many GPUs of this node take part, for example --gpus 4");
      if (v && *v != std::floor(*v)) mistakes.push_back(mistake(name, "must be a whole number", "Write for example --gpus 4"));
      else if (v) out.gpus = static_cast<int>(std::min(*v, 1024.0));
    } else {
      const std::string meant = did_you_mean(name, kNames);
      mistakes.push_back(mistake(name, "unknown option", meant.empty() ? "See --help" : meant));
    }
    if (given) mistakes.push_back(mistake(name, "takes no value", "Write " + name));
  }
  if (out.out.empty()) mistakes.push_back(mistake("--out", "is empty", "Name a file"));
  if (!mistakes.empty()) throw ConfigError(std::move(mistakes));
  return out;
}

std::string usage() {
  return R"(rehearse-probe: measures this machine and writes a measurements file for `rehearse calibrate`.

Usage: rehearse-probe [--quick | --full] [options]

  --quick              the most telling series, about 3 minutes (target error 2 %)
                       default: about 15 minutes (1 %); --full: everything, without a time limit (0.5 %)
  --out FILE           where the measurements go (default measurements.json); an interrupted run goes on from it
  --fresh              start anew even if FILE is there
  --only PATTERN,...   only series whose name, as --list prints it, holds PATTERN (* stands for anything; then all of it)
  --list               print the series, measured or not, and stop
  --budget SECONDS     stop after this time; a later run goes on
  --directory DIR      also test files in DIR (up to 1 GiB there, removed again)
  --gpus N             use N GPUs of this node (default all); ignored under mpirun, srun and torchrun
  --meet FILE          where the processes of several nodes meet: a file that all nodes see, not there yet
  --target-error X, --series-cap SECONDS   change the stopping rule
  --case-limit SECONDS give a series up that takes longer (default 120), write that down and end with exit code 3
  --self-test          check on the GPU that the kernels compute what they are timed for, and stop
  --help, --version

Exit codes: 0 done, or out of time with everything kept; 1 the self-test found an error; 2 mistakes in the arguments or FILE; 3 no usable GPU, driver or
library; 4 a mistake of ours; 130 interrupted (run again to go on).
)";
}

}  // namespace rehearse::calibrate
