// Measurements out of files that other programs wrote: nccl-tests, PyTorch's profiler, Nsight Systems.
// Leaves out topologies, which become node descriptions (topology.h), and the fit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "calibrate/measurements.h"

namespace rehearse::calibrate {

/// What an importer made of a file: three lists, so that nothing is ignored silently.
struct ImportReport {
  std::vector<std::string> used, ignored, not_understood;
};

struct Imported {
  Measurements measurements;
  ImportReport report;
};

struct ImportOptions {
  std::string collective;            // of nccl-tests logs that do not say which test ran: "all_reduce"
  std::optional<int> ranks, nodes;   // of nccl-tests logs whose list of devices was cut off; nodes: of profiler traces too
};

/// nccl-tests' text: the lines of ranks tell GPUs and nodes, the header tells the columns, the program's name the collective.
/// Times are out of place where that column has one. Throws ConfigError with file:line when there is no table in it, or which
/// collective or how many GPUs it was stays open.
Imported import_nccl_tests_text(const std::string& text, const std::string& file, const ImportOptions& options = {});

/// nccl-tests' JSON (-J), version 3. The environment that it dumps is never read into the result.
Imported import_nccl_tests_json(const std::string& text, const std::string& file, const ImportOptions& options = {});

/// A trace of PyTorch's profiler (Chrome JSON). NCCL kernels that carry their sizes become collectives, copies transfers.
/// Matrix products become gemm series when the trace has their shapes (record_shapes). Other kernels are listed by name with
/// their total time: their shapes are unknown, so nothing can be fitted to them.
Imported import_kineto(const std::string& text, const std::string& file, const ImportOptions& options = {});

/// An export of Nsight Systems (SQLite): copies become transfers; kernels are listed by name, their shapes are unknown.
Imported import_nsys(const std::string& file);

/// Any of them, by content. A file that begins as gzip is unpacked first.
Imported import_file(const std::string& file, const ImportOptions& options = {});
/// The same when `text` has been read from it already.
Imported import_text(const std::string& text, const std::string& file, const ImportOptions& options = {});

inline constexpr std::size_t kMostImported = std::size_t{2} << 30;

/// The content of a file of at most `most` bytes, unpacked when it is gzip; of an SQLite database only the beginning, enough
/// to tell what it is. Throws ConfigError.
std::string read_maybe_gzip(const std::string& file, std::size_t most = kMostImported);

/// `more` joined to `into`: series are appended, facts that differ are told as a warning.
void merge(Measurements& into, const Measurements& more, const std::string& file);

}  // namespace rehearse::calibrate
