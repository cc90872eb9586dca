// NCCL_TOPO_DUMP_FILE: system > cpu > pci (> pci) > gpu > nvlink; cpu > pci > nic > net, or system > cpu > nic > net.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <set>

#include "calibrate/import/node_draft.h"
#include "calibrate/import/text.h"
#include "calibrate/import/xml.h"
#include "sim/core/error.h"

namespace rehearse::calibrate {
namespace {

constexpr const char* kSwitchClass = "0x068000";  // an NVSwitch behind an nvlink

struct Net {
  std::string name;
  double megabits = 0;
};

}  // namespace

ImportedNode import_nccl_topology(const std::string& text, const std::string& file, const TopologyOptions& options) {
  const XmlElement root = parse_xml(valid_utf8(text), file);
  if (root.name != "system") throw ConfigError(Diagnostic{{file, root.line, 1}, root.name, "is not <system>: no topology of NCCL", "Give the file that NCCL_TOPO_DUMP_FILE named (a NCCL_GRAPH_DUMP_FILE holds graphs)", ""});
  NodeDraft draft;
  ImportReport report;
  std::vector<std::pair<std::string, const XmlElement*>> gpus;  // bus id, element
  std::map<std::string, int> below_switch;                      // PCIe switch -> GPUs
  std::vector<Net> nets;
  std::set<std::string> vendors, ignored;
  int cpus = 0;
  const std::function<void(const XmlElement&, const std::string&, const std::string&)> walk = [&](const XmlElement& e, const std::string& pci, const std::string& above) {
    for (const XmlElement& c : e.children) {
      if (c.name == "cpu") {
        ++cpus;
        const std::string vendor = c.attribute("vendor"), arch = c.attribute("arch");
        vendors.insert(arch.starts_with("arm") ? "arm" : vendor == "AuthenticAMD" ? "amd" : vendor == "GenuineIntel" ? "intel" : "");
        walk(c, "", "");
      } else if (c.name == "pci") {
        walk(c, c.attribute("busid"), pci);
      } else if (c.name == "gpu") {
        gpus.emplace_back(pci, &c);
        if (!above.empty()) ++below_switch[above];
      } else if (c.name == "nic") {
        walk(c, pci, above);
      } else if (c.name == "net") {
        const double megabits = std::atof(c.attribute("speed", "0").c_str());
        nets.push_back({c.attribute("name"), megabits > 0 && megabits < 1e8 ? megabits : 0});  // else: not known
      } else if (c.name != "nvlink") {
        ignored.insert(c.name);
      }
    }
  };
  walk(root, "", "");
  if (gpus.empty()) throw ConfigError(Diagnostic{{file, root.line, 1}, "gpu", "there is no GPU in it", "Let NCCL write it on a machine with GPUs", ""});
  draft.gpus = static_cast<int>(gpus.size());
  for (std::size_t a = 0; a < gpus.size(); ++a)
    for (const XmlElement& link : gpus[a].second->children) {
      if (link.name != "nvlink") continue;
      const int count = std::clamp(std::atoi(link.attribute("count", "1").c_str()), 0, 1000);
      if (link.attribute("tclass") == kSwitchClass) draft.switch_links[static_cast<int>(a)] += count;
      for (std::size_t b = 0; b < gpus.size(); ++b)
        if (link.attribute("target") == gpus[b].first) draft.nvlinks[{static_cast<int>(a), static_cast<int>(b)}] += count;
    }
  int most = 0;
  for (const auto& [bus, count] : below_switch) most = std::max(most, count);
  if (most > 0) draft.gpus_per_switch = most;
  draft.sockets = std::max(1, cpus);
  if (vendors.size() == 1 && !vendors.begin()->empty()) draft.cpu_vendor = *vendors.begin();
  // The fast NICs carry the GPUs' traffic; a slower one is for storage or the host.
  double fastest = 0;
  for (const Net& n : nets) fastest = std::max(fastest, n.megabits);
  int fast = 0;
  for (const Net& n : nets) {
    if (n.megabits == fastest) ++fast;
    else report.ignored.push_back(fmt::format("NIC {} at {:.0f} Gb/s: slower than the others", n.name, n.megabits / 1000));
    if (n.name.starts_with("rdmap") || n.name.find("efa") != std::string::npos) draft.network = "efa";
    else if (n.name.starts_with("eth") || n.name.starts_with("en")) draft.network = "tcp";
  }
  if (fast > 0 && fastest > 0) {
    draft.nics = fast, draft.nic_bytes_per_second = fastest * 1e6 / 8;
    report.used.push_back(fmt::format("{} NICs at {:.0f} Gb/s", fast, fastest / 1000));
  } else if (!nets.empty()) {
    report.not_understood.push_back("NICs without a speed");
  }
  for (const std::string& name : ignored) report.ignored.push_back("<" + name + ">");
  report.used.push_back(fmt::format("{} GPUs, {} CPU{}", draft.gpus, cpus, cpus == 1 ? "" : "s"));
  return node_from(draft, file, options, std::move(report));
}

}  // namespace rehearse::calibrate
