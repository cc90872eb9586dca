// rehearse calibrate import: other programs' files as measurements, and topologies as a node description.
#include <fmt/format.h>

#include <memory>

#include "calibrate/import/import.h"
#include "calibrate/import/topology.h"
#include "hwmodels/topology/cluster.h"
#include "sim/cli/calibrate.h"
#include "sim/cli/output.h"
#include "sim/core/error.h"
#include "sim/report/format.h"

namespace rehearse::cli {
namespace {

namespace cal = calibrate;

struct CalibrateImportOptions {
  std::vector<std::string> files;
  std::string out, collective;
  std::optional<int> ranks, nodes;
  cal::TopologyOptions topology;
};

std::string report_text(const std::string& file, const cal::ImportReport& r) {
  std::string text = file + "\n";
  for (const std::string& s : r.used) text += report::wrapped("  used:           ", s);
  for (const std::string& s : r.ignored) text += report::wrapped("  ignored:        ", s);
  for (const std::string& s : r.not_understood) text += report::wrapped("  not understood: ", s);
  return text;
}

enum class Kind { measurements, matrix, xml };
Kind kind_of(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '<' && text.find("<system") != std::string::npos) return Kind::xml;
  const bool matrix = text.find("GPU0") != std::string::npos && text.find("CPU Affinity") != std::string::npos && text.find("busbw") == std::string::npos;
  return matrix ? Kind::matrix : Kind::measurements;
}

int import(const CalibrateImportOptions& o) {
  check_writable(o.out);
  cal::Measurements all;
  std::string report;
  std::optional<cal::ImportedNode> node;
  for (const std::string& file : o.files) {
    const std::string text = cal::read_maybe_gzip(file);
    const Kind kind = kind_of(text);
    if (kind != Kind::measurements) {
      if (o.files.size() > 1) throw ConfigError(Diagnostic{{file, 0, 0}, "", "is a topology, which becomes a node description", "Import it alone: --out node.yaml", ""});
      node = kind == Kind::xml ? cal::import_nccl_topology(text, file, o.topology) : cal::import_topology_matrix(text, file, o.topology);
      report += report_text(file, node->report);
      break;
    }
    const cal::Imported one = cal::import_text(text, file, {o.collective, o.ranks, o.nodes});
    cal::merge(all, one.measurements, file);
    report += report_text(file, one.report);
  }
  if (node) {
    write_file(o.out, node->yaml);
    if (o.out != "-") hwmodels::load_node(o.out.find('/') == std::string::npos ? "./" + o.out : o.out);  // what we write, we can read
  } else {
    for (const std::string& warning : all.warnings) report += report::wrapped("warning: ", warning);
    if (all.series.empty()) {
      say(report + "nothing in these files is a measurement that a fit could use\n");
      return kNo;
    }
    write_file(o.out, cal::to_json(all));
  }
  if (o.out == "-") say(report);
  else print(report + "written: " + o.out + "\n");
  return kYes;
}

}  // namespace

Run add_calibrate_import(CLI::App& app) {
  auto o = std::make_shared<CalibrateImportOptions>();
  app.add_option("FILE", o->files, "nccl-tests output (text or -J), PyTorch trace (.json, .gz), nsys export (.sqlite); or a topology: nvidia-smi topo -m, NCCL_TOPO_DUMP_FILE")->required();
  app.add_option("-o,--out", o->out, "measurements file (JSON), or node description (YAML) of a topology")->required();
  app.add_option("--op", o->collective, "collective of nccl-tests logs that do not name it")
      ->check(CLI::IsMember({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv"}));
  app.add_option("--ranks", o->ranks, "GPUs that took part, where the log does not tell")->check(CLI::Range(1, 1000000));
  app.add_option("--nodes", o->nodes, "nodes that took part, where the file does not tell")->check(CLI::Range(1, 100000));
  app.add_option("--gpu", o->topology.gpu, "topology: the GPU (rehearse hardware list), or a file");
  app.add_option("--nic-bandwidth", o->topology.nic_bandwidth, "topology: line rate of a NIC, \"400 Gb/s\"");
  app.footer("Examples:\n  rehearse calibrate import all_reduce.log all_gather.log --out m.json\n  rehearse calibrate import topo.txt --gpu h100-sxm --nic-bandwidth \"400 Gb/s\" --out node.yaml");
  return [o] { return import(*o); };
}

}  // namespace rehearse::cli
