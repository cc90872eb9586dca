// Published nccl-tests rows, and the cluster that each one ran on.
// Leaves out rows that are no collective of NCCL (copies, DeepEP kernels) or whose machine is not stated:
// they are counted.
#pragma once

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "hwmodels/network/network.h"
#include "hwmodels/topology/cluster.h"

namespace rehearse::hwmodels::test {

struct TableRow {
  std::string id, table;
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::string node, gpu;  // names of data files
  std::string cluster;    // whose, where a table has several of one design: project and name
  GroupShape shape;
  double bytes = 0;
  double microseconds = 0;  // measured
  CommunicationOptions options;
  bool through_lists = false;
};

struct CollectiveTable {
  std::vector<TableRow> rows;
  std::map<std::string, int> left_out;  // reason -> rows
};

inline std::vector<std::vector<std::string>> read_csv(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::vector<std::string>> lines;
  for (std::string line; std::getline(in, line);) {
    std::vector<std::string> cells(1);
    bool quoted = false;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"')
        cells.back() += line[i++];
      else if (line[i] == '"')
        quoted = !quoted;
      else if (line[i] == ',' && !quoted)
        cells.emplace_back();
      else if (line[i] != '\r')
        cells.back() += line[i];
    }
    lines.push_back(std::move(cells));
  }
  return lines;
}

inline bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// The machine a row was measured on; empty when we have no design for it.
inline std::pair<std::string, std::string> machine_of(const std::string& gpu, const std::string& inter,
                                                      int nodes) {
  if (gpu == "V100") return {"dgx-1v", "v100-32gb-sxm2"};
  if (gpu == "A100-PCIE-80GB") return {has(inter, "bridge") ? "pcie-8-bridge" : "pcie-8", "a100-80gb-pcie"};
  if (gpu == "H100-PCIE-80GB") return {has(inter, "bridge") ? "pcie-8-bridge" : "pcie-8", "h100-pcie"};
  if (gpu == "H800") return {"h800-8nic", "h800-sxm"};
  if (gpu == "H20") return {"dgx-h200", "h20"};
  if (gpu == "RTX-5090") return {"rtx-4090-8", "rtx-5090"};
  if (gpu == "RTX-4090") return {"rtx-4090-4-p2p", "rtx-4090"};
  if (gpu == "A100" || gpu == "DGX A100" || gpu == "A100-SXM4-80GB")
    return {has(inter, "Azure ND") ? "nd-a100-v4" : "dgx-a100", "a100-80gb-sxm"};
  if (gpu == "A100-SXM4-40GB") return {"dgx-a100", "a100-40gb-sxm"};
  if (gpu == "H100" || gpu == "DGX H100" || gpu == "H100-SXM5-80GB") {
    if (has(inter, "HF cluster")) return {"p5-2024", "h100-sxm"};
    if (has(inter, "EFA")) return {"p5", "h100-sxm"};
    return {nodes > 1 && nodes < 128 && has(inter, "RoCE") ? "grand-teton-h100" : "dgx-h100", "h100-sxm"};
  }
  if (gpu == "H200-SXM-141GB") return {"dgx-h200", "h200-sxm"};
  if (gpu == "B200" || gpu == "B200-SXM") return {has(inter, "EFA") ? "p6-b200" : "dgx-b200", "b200-sxm"};
  if (gpu == "GH200") return {"gh200-4", "gh200-96gb"};
  if (gpu == "B300") return {"dgx-b300", "b300-sxm"};
  if (gpu == "GB200") return {"gb200-nvl72-8nic", "gb200-nvl72"};
  if (gpu == "GB200 NVL72") return {"gb200-nvl72", "gb200-nvl72"};
  if (gpu == "MI300X") return {"mi300x-8", "mi300x"};
  if (gpu == "MI355X") return {"mi355x-8", "mi355x"};
  return {};
}

inline void add_table(const std::string& path, CollectiveTable& out) {
  auto lines = read_csv(path);
  std::map<std::string, std::size_t> column;
  for (std::size_t i = 0; i < lines.at(0).size(); ++i) column[lines[0][i]] = i;
  const std::map<std::string, CollectiveKind> kinds = {{"all_reduce", CollectiveKind::all_reduce},
                                                       {"all_gather", CollectiveKind::all_gather},
                                                       {"reduce_scatter", CollectiveKind::reduce_scatter},
                                                       {"alltoall", CollectiveKind::all_to_all},
                                                       {"sendrecv", CollectiveKind::send_recv}};
  std::map<std::string, bool> seen;
  for (std::size_t l = 1; l < lines.size(); ++l) {
    auto cell = [&](const char* name) { return lines[l].at(column.at(name)); };
    std::string inter = cell("interconnect"), gpu = cell("gpu"), algo = cell("algo_proto"),
                source = cell("source");
    auto kind = kinds.find(cell("collective"));
    if (kind == kinds.end()) {
      ++out.left_out["not a collective of NCCL"];
      continue;
    }
    if (has(inter, "degraded")) {
      ++out.left_out["degraded network (an input, not a prediction)"];
      continue;
    }
    // One fork of the Azure guide repeats two tables of the original.
    if (has(source, "samuel-bohman") && (has(source, "A100") || has(source, "H100"))) {
      ++out.left_out["copy of another table"];
      continue;
    }
    int ranks = std::atoi(cell("n_gpus").c_str()), nodes = std::atoi(cell("nodes").c_str());
    if (gpu == "GB200" && ranks == 0) ranks = 4, nodes = 1;  // Azure runs one VM of four GPUs; floors agree
    auto [node, card] = machine_of(gpu, inter, nodes);
    if (node.empty() || ranks < 2) {
      ++out.left_out["machine without a design here: " + gpu + " " + inter.substr(0, 30)];
      continue;
    }
    TableRow row;
    row.kind = kind->second;
    row.id = cell("row_id");
    row.node = node, row.gpu = card;
    if (has(path, "nccl_clusters")) row.cluster = source.substr(0, source.find(' ', source.find(' ') + 1));
    row.shape = {ranks, nodes, ranks / nodes, 1, 1, 1};
    bool size_unstated = cell("size_bytes").empty();  // slides: "peak"
    row.bytes = size_unstated ? 16.0 * (1LL << 30) : std::atof(cell("size_bytes").c_str());
    double bus = std::atof(cell("busbw_gbps").c_str()), n = ranks;
    row.microseconds = std::atof(cell("time_us").c_str());
    if (row.microseconds == 0) {
      if (bus < 0.2) {
        ++out.left_out["two digits of bandwidth only"];
        continue;
      }
      double factor = row.kind == CollectiveKind::all_reduce  ? 2 * (n - 1) / n
                      : row.kind == CollectiveKind::send_recv ? 1
                                                              : (n - 1) / n;
      row.microseconds = row.bytes * factor / (1000 * bus);
    }
    if (has(algo, "Ring") || has(algo, "NVLS off") || has(inter, "no SHARP")) row.options.nvls = false;
    if (has(algo, "LL128")) {
      row.options.forced_algorithm = row.options.forced_protocol = true;
      row.options.algorithm = Algorithm::ring, row.options.protocol = Protocol::ll128;
    }
    if (has(inter, "SHARP 8x400Gb")) row.options.sharp = true;
    row.through_lists = has(inter, "HF cluster") && row.kind != CollectiveKind::all_reduce;
    row.table = cell("collective") + " " + gpu + " x" + std::to_string(ranks) + " " + source.substr(0, 34);
    out.rows.push_back(std::move(row));
  }
}

inline CollectiveTable all_tables(const std::string& folder) {
  CollectiveTable table;
  add_table(folder + "/collectives_and_p2p.csv", table);
  add_table(folder + "/nccl_published.csv", table);
  add_table(folder + "/nccl_clusters.csv", table);
  add_table(folder + "/nccl_aiconfigurator.csv", table);
  return table;
}

}  // namespace rehearse::hwmodels::test
