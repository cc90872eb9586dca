// rehearse hardware: GPUs, node designs and fabrics as the data files state them.
#include <fmt/format.h>

#include <algorithm>

#include "hwmodels/topology/cluster.h"
#include "sim/cli/output.h"
#include "sim/cli/subcommand.h"
#include "sim/config/units.h"
#include "sim/core/error.h"
#include "sim/core/suggestion.h"
#include "sim/report/format.h"

namespace rehearse::cli {
namespace {

using report::Table;

bool holds(const std::vector<std::string>& names, const std::string& name) { return std::find(names.begin(), names.end(), name) != names.end(); }

int list_hardware() {
  Table gpus({"GPU", "title", "memory", "bandwidth", "bf16 or fp16", "NVLink"});
  gpus.left(1);
  for (const std::string& name : hwmodels::gpu_names()) {
    const hwmodels::Gpu g = hwmodels::load_gpu(name);
    auto peak = g.peak.find(DType::bf16);
    if (peak == g.peak.end()) peak = g.peak.find(DType::fp16);
    gpus.add({"  " + name, g.title, report::bytes_text(g.memory.value), report::si_text(g.hbm_bandwidth.value, "B/s"),
              peak == g.peak.end() ? "" : report::si_text(peak->second.value, "FLOPS"), g.nvlink_bandwidth.value > 0 ? report::si_text(g.nvlink_bandwidth.value, "B/s") : "-"});
  }
  Table nodes({"Node design", "title", "GPUs", "inside", "NICs"});
  nodes.left(1).left(3);
  for (const std::string& name : hwmodels::node_names()) {
    const hwmodels::NodeDesign n = hwmodels::load_node(name);
    nodes.add({"  " + name, n.title, fmt::format("{} x {}", n.gpus, n.gpu), std::string(name_of(n.scale_up)),
               n.nic.count == 0 ? "-" : fmt::format("{} x {:.0f} Gb/s", n.nic.count, n.nic.bandwidth.value * 8e-9)});
  }
  Table fabrics({"Fabric", "title", "kind", "oversubscription"});
  fabrics.left(1).left(2);
  for (const std::string& name : hwmodels::fabric_names()) {
    const hwmodels::FabricDesign f = hwmodels::load_fabric(name);
    fabrics.add({"  " + name, f.title, std::string(name_of(f.kind)), report::number_text(f.oversubscription)});
  }
  print(gpus.text(0) + "\n" + nodes.text(0) + "\n" + fabrics.text(0));
  return kYes;
}

std::string gpu_text(const hwmodels::Gpu& g) {
  Table table({g.title, "value", "measured", "source"});
  // Sources are long and repeat: numbers in the table, texts below it.
  std::vector<std::string> sources;
  const auto source = [&](const std::string& key) {
    std::string marks;
    for (const std::string& k : {key, key + ".measured"}) {
      const auto it = g.sources.find(k);
      if (it == g.sources.end()) continue;
      const auto at = std::find(sources.begin(), sources.end(), it->second);
      const auto number = at - sources.begin() + 1;
      if (at == sources.end()) sources.push_back(it->second);
      marks += fmt::format("{}[{}]", marks.empty() ? "" : " ", number);
    }
    return marks;
  };
  const auto row = [&](const std::string& key, const std::string& value, const std::string& measured = {}) { table.add({"  " + key, value, measured, source(key)}); };
  row("architecture", std::string(name_of(g.architecture)));
  row("sms", std::to_string(g.sms));
  row("boost_clock", report::number_text(g.boost_clock_mhz) + " MHz");
  if (g.max_clock_mhz > 0) row("max_clock", report::number_text(g.max_clock_mhz) + " MHz");
  row("tdp", report::number_text(g.tdp_watts) + " W");
  if (g.own_watts != g.tdp_watts) row("gpu_power", report::number_text(g.own_watts) + " W");
  row("memory", report::bytes_text(g.memory.value));
  row("hbm_bandwidth", report::si_text(g.hbm_bandwidth.value, "B/s"), g.measured_hbm_bandwidth ? report::si_text(g.measured_hbm_bandwidth->value, "B/s") : "");
  row("l2", report::bytes_text(g.l2.value));
  for (const auto& [type, rate] : g.peak) {
    const auto measured = g.measured_peak.find(type);
    row("peak." + std::string(name_of(type)), report::si_text(rate.value, "FLOPS"), measured == g.measured_peak.end() ? "" : report::si_text(measured->second.value, "FLOPS"));
  }
  if (g.nvlink_bandwidth.value > 0) row("nvlink", report::si_text(g.nvlink_bandwidth.value, "B/s"));
  row("host_to_device", report::si_text(g.host_to_device.value, "B/s"));
  row("device_to_host", report::si_text(g.device_to_host.value, "B/s"));
  for (const auto& [name, value] : g.kernel_parameters) row("kernel." + name, config::number_text(value));
  std::string text = table.text(0) + "NVLink and PCIe rates are per direction; peaks are dense. Sources:\n";
  for (std::size_t i = 0; i < sources.size(); ++i) text += report::wrapped(fmt::format("{:>5} ", fmt::format("[{}]", i + 1)), sources[i]);
  return text;
}

std::string node_text(const hwmodels::NodeDesign& n) {
  Table table({n.title, ""});
  table.left(1);
  table.add({"  GPUs", fmt::format("{} x {}{}", n.gpus, n.gpu, n.gpu_power > 0 ? fmt::format(", held to {:g} W each", n.gpu_power) : "")});
  table.add({"  scale-up network", fmt::format("{}, domains of {} GPUs{}", name_of(n.scale_up), n.domain, n.nvls ? ", reduces in the switches (NVLS)" : "")});
  table.add({"  NICs", n.nic.count == 0 ? "none" : fmt::format("{} x {:.0f} Gb/s, {}, {:.0f} % of the line rate", n.nic.count, n.nic.bandwidth.value * 8e-9, n.nic.network, 100 * n.nic.efficiency)});
  table.add({"  PCIe", fmt::format("{} GPUs per switch{}", n.pcie.gpus_per_switch, n.pcie.peer_to_peer ? ", peer to peer" : "")});
  table.add({"  CPUs", fmt::format("{} x {} ({} cores in all), {} of memory at {}", n.cpu.sockets, n.cpu.model, n.cpu.cores, report::bytes_text(n.cpu.memory.value), report::si_text(n.cpu.memory_bandwidth.value, "B/s"))});
  if (n.nvme.capacity.value > 0) table.add({"  NVMe", fmt::format("{}, read {}, write {}", report::bytes_text(n.nvme.capacity.value), report::si_text(n.nvme.read.value, "B/s"), report::si_text(n.nvme.write.value, "B/s"))});
  return table.text(0) + "  numbers and sources: hwmodels/data/node/" + n.name + ".yaml\n";
}

std::string fabric_text(const hwmodels::FabricDesign& f) {
  return fmt::format("{}\n  {}; {} nodes per leaf, {} spines, oversubscription {}, {} per switch\n  numbers and sources: hwmodels/data/fabric/{}.yaml\n", f.title, name_of(f.kind), f.nodes_per_leaf, f.spines,
                     report::number_text(f.oversubscription), report::picoseconds_text(f.hop_latency.count()), f.name);
}

int show_hardware(const std::string& name) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : "\n") + part; };
  if (holds(hwmodels::gpu_names(), name)) add(gpu_text(hwmodels::load_gpu(name)));
  if (holds(hwmodels::node_names(), name)) add(node_text(hwmodels::load_node(name)));
  if (holds(hwmodels::fabric_names(), name)) add(fabric_text(hwmodels::load_fabric(name)));
  if (text.empty()) {
    std::vector<std::string> all = hwmodels::gpu_names();
    for (const auto& more : {hwmodels::node_names(), hwmodels::fabric_names()}) all.insert(all.end(), more.begin(), more.end());
    throw ConfigError(Diagnostic{{}, "", fmt::format("there is no GPU, node design or fabric '{}'", name), did_you_mean(name, all, "All names: rehearse hardware list"), ""});
  }
  print(text);
  return kYes;
}

}  // namespace

Run add_hardware(CLI::App& app) {
  app.require_subcommand(1);
  auto name = std::make_shared<std::string>();
  app.footer("Examples:\n  rehearse hardware list\n  rehearse hardware show h100-sxm");  // of the subcommands, too: they take what is there
  CLI::App* list_command = app.add_subcommand("list", "every GPU, node design and fabric");
  CLI::App* show_command = app.add_subcommand("show", "the numbers of one, with their sources");
  show_command->add_option("NAME", *name, "a GPU, node design or fabric")->required();
  return [=] { return list_command->parsed() ? list_hardware() : show_hardware(*name); };
}

}  // namespace rehearse::cli
