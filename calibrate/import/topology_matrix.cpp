// nvidia-smi topo -m: a matrix of paths between GPUs and NICs, then affinities and legends.
#include <fmt/format.h>

#include <cstdlib>
#include <set>
#include <sstream>

#include "calibrate/import/node_draft.h"
#include "calibrate/import/text.h"
#include "sim/core/error.h"

namespace rehearse::calibrate {
namespace {

/// Newer drivers underline the header even in pipes.
std::string without_escapes(const std::string& line) {
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\033') {
      while (i < line.size() && line[i] != 'm') ++i;
    } else if (line[i] != '\r') {
      out += line[i];
    }
  }
  return out;
}

bool device(const std::string& w, const char* kind) { return w.starts_with(kind) && w.size() > 3 && w.find_first_not_of("0123456789", 3) == std::string::npos; }
/// Old drivers head the columns of NICs by their names.
bool nic(const std::string& w) { return device(w, "NIC") || w.starts_with("mlx") || w.starts_with("bnxt") || w.starts_with("rdmap") || w.starts_with("irdma"); }

}  // namespace

ImportedNode import_topology_matrix(const std::string& text, const std::string& file, const TopologyOptions& options) {
  const auto fail = [&](int line, const std::string& why, const std::string& fix) { throw ConfigError(Diagnostic{{file, line, line > 0 ? 1 : 0}, "", why, fix, ""}); };
  NodeDraft draft;
  ImportReport report;
  std::vector<std::string> columns;
  std::set<std::string> numa;
  std::string network;
  int number = 0, near_first = 0;
  std::istringstream in(valid_utf8(text));
  for (std::string raw; std::getline(in, raw);) {
    ++number;
    const std::vector<std::string> words = words_of(without_escapes(raw));
    if (words.empty()) continue;
    if (columns.empty()) {
      if (!device(words.front(), "GPU") || words.size() < 2) continue;
      for (const std::string& w : words)
        if (device(w, "GPU") || nic(w)) columns.push_back(w);
        else break;  // CPU Affinity, NUMA Affinity, ...
      for (const std::string& c : columns) (device(c, "GPU") ? draft.gpus : *(draft.nics ? &*draft.nics : &draft.nics.emplace(0)))++;
      continue;
    }
    if (words.front() == "Legend:") break;
    if (!device(words.front(), "GPU")) continue;
    if (words.size() < columns.size() + 1) fail(number, fmt::format("the row of {} has {} columns, the header {}", words.front(), words.size() - 1, columns.size()), "Give the whole output of nvidia-smi topo -m");
    const int row = std::atoi(words.front().c_str() + 3);
    if (row >= draft.gpus) fail(number, words.front() + " is not in the header", "Give the whole output of nvidia-smi topo -m");
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::string& path = words[c + 1];
      static const std::set<std::string> known{"X", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC"};
      const bool link = path.starts_with("NV") && path.size() > 2 && path.find_first_not_of("0123456789", 2) == std::string::npos;
      if (!link && !known.contains(path)) {
        report.not_understood.push_back(fmt::format("line {}: path '{}' between {} and {}", number, path, words.front(), columns[c]));
        continue;
      }
      if (!device(columns[c], "GPU")) continue;
      const int peer = std::atoi(columns[c].c_str() + 3);
      if (link) draft.nvlinks[{row, peer}] = std::atoi(path.c_str() + 2);
      if (row == 0 && (path == "PIX" || path == "PXB")) ++near_first;
    }
    // Behind the matrix: "CPU Affinity" (0-55,112-167), "NUMA Affinity" (0), "GPU NUMA ID" (N/A).
    if (words.size() > columns.size() + 2) numa.insert(words[columns.size() + 2]);
  }
  if (columns.empty() || draft.gpus == 0) fail(0, "holds no matrix of nvidia-smi topo -m", "Give its whole output");
  if (near_first > 0) draft.gpus_per_switch = near_first + 1;
  if (!numa.empty()) draft.sockets = static_cast<int>(numa.size());
  if (draft.sockets) report.used.push_back(fmt::format("{} NUMA nodes, taken as sockets", *draft.sockets));
  for (const std::string& c : columns)
    if (c.starts_with("rdmap")) draft.network = "efa";
  report.used.push_back(fmt::format("paths between {} GPUs", draft.gpus));
  report.ignored.push_back("paths between GPUs and NICs: rails are the fabric's");
  return node_from(draft, file, options, std::move(report));
}

}  // namespace rehearse::calibrate
