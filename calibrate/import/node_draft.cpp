#include "calibrate/import/node_draft.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "hwmodels/device/gpu.h"
#include "sim/config/units.h"
#include "sim/core/error.h"

namespace rehearse::calibrate {
namespace {

struct Joined {
  const char* word;
  int links_per_pair = 0;
  bool uneven = false;   // pairs differ, or some are not joined
};

Joined joined(const NodeDraft& d, int own_links) {
  if (std::any_of(d.switch_links.begin(), d.switch_links.end(), [](const auto& l) { return l.second > 0; })) return {"nvswitch"};
  std::set<int> kinds;
  int pairs = 0, most_peers = 0;
  for (int a = 0; a < d.gpus; ++a) {
    int peers = 0;
    for (int b = 0; b < d.gpus; ++b) {
      const auto at = d.nvlinks.find({a, b});
      if (a == b || at == d.nvlinks.end() || at->second <= 0) continue;
      kinds.insert(at->second);
      ++pairs, ++peers;
    }
    most_peers = std::max(most_peers, peers);
  }
  if (pairs == 0) return {"none"};
  const bool all = pairs == d.gpus * (d.gpus - 1);
  const int links = *kinds.begin();
  // With a switch every peer shows all links of the GPU; wired directly, they are divided among the peers.
  if (all && d.gpus > 2 && (own_links > 0 ? links * (d.gpus - 1) > own_links : links >= 6)) return {"nvswitch"};
  if (most_peers <= 1) return {"bridge"};
  return {"mesh", links, kinds.size() > 1 || !all};
}

}  // namespace

ImportedNode node_from(const NodeDraft& d, const std::string& file, const TopologyOptions& options, ImportReport report) {
  if (options.gpu.empty())
    throw ConfigError(Diagnostic{{file, 0, 0}, "gpu", "which GPU it is is not in the file", "Say it: --gpu h100-sxm (rehearse hardware list), or a file of your own", ""});
  const hwmodels::Gpu gpu = hwmodels::load_gpu(options.gpu);
  const Joined how = joined(d, gpu.nvlink_links);
  const bool can_reduce = std::string(how.word) == "nvswitch" && gpu.compute_capability >= 90;
  std::string text = "# Written by rehearse calibrate import from " + std::filesystem::path(file).filename().string() + ".\n";
  const std::string source = "calibrate import of " + std::filesystem::path(file).filename().string();
  text += fmt::format("title: imported node with {} x {}\ngpu: {}\ngpus: {}\nscale_up: {}\n", d.gpus, gpu.title, options.gpu, d.gpus, how.word);
  if (how.uneven) {
    text += "links:\n";
    for (const auto& [pair, links] : d.nvlinks)
      if (pair.first < pair.second && links > 0) text += fmt::format("  - {{from: {}, to: {}, count: {}}}\n", pair.first, pair.second, links);
  } else if (how.links_per_pair > 0) text += fmt::format("links_per_pair: {}\n", how.links_per_pair);
  text += fmt::format("domain: {}\n", d.gpus);
  if (std::string(how.word) == "nvswitch") {
    text += fmt::format("nvls: {}\n", can_reduce);
    report.used.push_back(can_reduce ? "NVSwitch of this generation reduces (NVLS): taken as switched on" : "NVSwitch without reduction");
  }
  text += fmt::format("source: \"{}\"\n", source);
  std::optional<double> rate = d.nic_bytes_per_second;
  if (!rate && !options.nic_bandwidth.empty()) {
    const auto given = config::parse_rate(options.nic_bandwidth);
    if (!given) throw ConfigError(Diagnostic{{"--nic-bandwidth", 0, 0}, "", given.problem, given.fix, ""});
    rate = given.value->value;
  }
  if (d.nics.value_or(0) > 0 && rate) {
    text += fmt::format("nic:\n  count: {}\n  bandwidth: {:g} Gb/s\n  network: {}\n  source: \"{}\"\n", *d.nics, *rate * 8e-9, d.network.empty() ? "infiniband" : d.network, source);
    if (d.network.empty()) report.used.push_back("kind of network: not told, taken as infiniband; roce, efa and tcp are the others");
  } else if (d.nics.value_or(0) > 0) {
    report.not_understood.push_back(fmt::format("{} NICs whose speed the file does not tell: left out. Say it: --nic-bandwidth \"400 Gb/s\"", *d.nics));
  }
  if (d.gpus_per_switch) text += fmt::format("pcie:\n  gpus_per_switch: {}\n  source: \"{}\"\n", *d.gpus_per_switch, source);
  if (d.sockets || !d.cpu_vendor.empty()) {
    text += "cpu:\n";
    if (!d.cpu_vendor.empty()) text += "  vendor: " + d.cpu_vendor + "\n";
    if (d.sockets) text += fmt::format("  sockets: {}\n", *d.sockets);
    text += fmt::format("  source: \"{}\"\n", source);
    report.not_understood.push_back("cores, memory and its bandwidth are not in the file: add them under cpu when something is offloaded");
  }
  report.used.push_back(fmt::format("{} GPUs, joined by {}", d.gpus, how.word));
  return {std::move(text), std::move(report)};
}

}  // namespace rehearse::calibrate
