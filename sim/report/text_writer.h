// The answer of `rehearse run` on one screen: fits or not, how fast, where the time goes, what fills the memory, and
// what the numbers rest on. Leaves out the stages on the way there (explain.h) and machine-readable output.
#pragma once

#include <string>

#include "sim/report/accounts.h"

namespace rehearse::report {

/// `colour`: ANSI colours for the verdict; for terminals only. Lines are at most kWidth characters long.
struct TextOptions {
  bool colour = false;
};
std::string write_text(const Scenario& scenario, const Result& result, const TextOptions& options = {});

/// What is simulated: title, model and machines, batch and degrees.
std::string heading_text(const Scenario& scenario);

/// Why it does not fit: what the first ranks that run out asked for and had, and what a node lacks; nothing where it fits.
std::string failure_text(const Scenario& scenario, const Result& result);

/// Data files, expected error, hash and notes.
std::string foundations_text(const Scenario& scenario, const Result& result);

/// Its first line alone: "FITS: ..." or "DOES NOT FIT: ...".
std::string verdict_line(const Scenario& scenario, const Result& result);

/// Ranks as routing makes them differ; nothing where it does not.
std::string experts_text(const Result& result);

/// When a class's memory was fullest: "step 2, micro-batch 1, backward (head backward)"; steps are counted from 1.
std::string peak_moment_text(const Result& result, std::size_t rank_class);

/// Its part on memory: per rank class what is allocated, reserved and seen by nvidia-smi, by category at the peak.
std::string memory_text(const Scenario& scenario, const Result& result);

/// Classes worth showing when there are many: the first and last ones, the critical and the fullest, in order.
std::vector<std::size_t> shown_classes(const Result& result, std::size_t at_most);

}  // namespace rehearse::report
