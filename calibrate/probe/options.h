// What the user asked rehearse-probe to do. Leaves out doing it (program.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "calibrate/probe/sampling.h"

namespace rehearse::calibrate {

struct ProbeOptions {
  enum class Mode { quick, usual, full };
  Mode mode = Mode::usual;
  bool list = false, help = false, version = false, self_test = false;
  bool fresh = false;        // throw the output file's content away
  std::string only;          // patterns, split by commas
  std::string out = "measurements.json";
  std::string directory;     // for the file tests
  std::string meet;          // where processes meet
  std::optional<double> budget_s;
  double case_limit_s = 120; // a case that takes longer hangs
  std::optional<int> gpus;   // processes that the program starts by itself
  std::optional<double> target_relative_error;
  std::optional<double> series_cap_s;

  double budget() const;     // seconds; quick 180, usual 900, full without end
  int most_tier() const { return static_cast<int>(mode); }
  std::string mode_name() const;
  SamplingRule rule() const;
};

/// Throws ConfigError with every mistake.
ProbeOptions parse_options(const std::vector<std::string>& arguments);

std::string usage();

}  // namespace rehearse::calibrate
