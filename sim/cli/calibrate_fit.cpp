// rehearse calibrate fit: GPU file, table of measured kernels, NCCL constants, node and a cluster fragment from measurements.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "calibrate/fit/fit_interference.h"
#include "calibrate/fit/fit_report.h"
#include "calibrate/fit/known_machines.h"
#include "calibrate/fit/write_gpu.h"
#include "hwmodels/device/measured_points.h"
#include "sim/cli/calibrate.h"
#include "sim/cli/output.h"
#include "sim/core/error.h"

namespace rehearse::cli {
namespace {

namespace cal = calibrate;

struct Options {
  std::vector<std::string> files;
  std::string out, gpu, node;
};

template <typename T>
const T* fact(const cal::Facts& facts, const char* name) {
  const auto at = facts.find(name);
  return at == facts.end() ? nullptr : std::get_if<T>(&at->second);
}

/// All files as one. They must be of one kind of GPU.
cal::Measurements read_all(const std::vector<std::string>& files) {
  cal::Measurements all = cal::read_measurements(files.front());
  const std::string* gpu = fact<std::string>(all.machine, "gpu");
  for (std::size_t i = 1; i < files.size(); ++i) {
    cal::Measurements more = cal::read_measurements(files[i]);
    const std::string* other = fact<std::string>(more.machine, "gpu");
    if (gpu != nullptr && other != nullptr && *gpu != *other)
      throw ConfigError(Diagnostic{{files[i], 0, 0}, "machine.gpu", fmt::format("'{}', but {} is of '{}'", *other, files.front(), *gpu), "Fit one kind of GPU at a time", ""});
    all.machine.merge(more.machine), all.software.merge(more.software);
    all.series.insert(all.series.end(), more.series.begin(), more.series.end());
    all.warnings.insert(all.warnings.end(), more.warnings.begin(), more.warnings.end());
  }
  return all;
}

std::string base_gpu(const Options& o, const cal::Measurements& m) {
  if (!o.gpu.empty()) return o.gpu;
  const std::string* name = fact<std::string>(m.machine, "gpu");
  if (name == nullptr) throw ConfigError(Diagnostic{{o.files.front(), 0, 0}, "machine.gpu", "the file does not say which GPU was measured", "Name the file to start from: --gpu h100-sxm (rehearse hardware list)", ""});
  if (const auto known = cal::gpu_of(*name)) return *known;
  throw ConfigError(Diagnostic{{o.files.front(), 0, 0}, "machine.gpu", fmt::format("no file of ours is of '{}'", *name), "Name one that is near, or a file of your own: --gpu h100-sxm, --gpu ./my-gpu.yaml", ""});
}

/// Of the node that was measured, as far as its collectives tell.
int gpus_per_node(const cal::Observations& seen) {
  int out = 1;
  for (const cal::CollectiveObservation& c : seen.collectives) out = std::max(out, c.shape.ranks_per_node);
  return out;
}

int fit(const Options& o) {
  const cal::Measurements m = read_all(o.files);
  const std::string gpu_name = base_gpu(o, m);
  const hwmodels::Gpu gpu = hwmodels::load_gpu(gpu_name);
  const std::filesystem::path folder(o.out);
  std::error_code ec;
  std::filesystem::create_directories(folder, ec);
  check_writable((folder / "gpu.yaml").string());

  const cal::Observations seen = cal::observe(m);
  cal::KernelFit kernels = cal::fit_kernels(seen, gpu);
  const std::vector<cal::LinearFit> copies = cal::fit_copies(seen), launches = cal::fit_launches(seen);
  const std::vector<cal::HostNumber> host = cal::fit_host(seen, copies);
  const std::string origin = cal::origin_of(m, today());
  const std::string node = o.node.empty() ? cal::node_of(gpu_name, gpus_per_node(seen)) : o.node;
  std::optional<cal::CollectiveFit> collectives;
  hwmodels::ClusterDescription cluster = hwmodels::load_cluster(node, 1, "rail-fat-tree", gpu_name);
  if (!seen.collectives.empty()) {
    collectives = cal::fit_collectives(seen, cluster);
    cluster.collectives = std::make_shared<const hwmodels::CollectiveParameters>(collectives->parameters);
    if (collectives->nic_efficiency) cluster.nic_efficiency = collectives->nic_efficiency;
  }
  const bool network = collectives && collectives->family.rows > 0;
  const cal::FamilyFit interference = cal::fit_interference(seen, kernels.gpu, network ? &cluster : nullptr);
  if (interference.rows > 0) kernels.families.push_back(interference);

  std::string text = fmt::format("{}\nover {} ({})\n\n", origin, gpu_name, gpu.title);
  for (const cal::FamilyFit& f : kernels.families) text += cal::family_text(f);
  text += cal::lines_text("Copies", copies, true) + cal::lines_text("Launches (for information: frameworks' own host times are larger)", launches, false) + cal::host_text(host);
  if (network) text += fmt::format("on nodes of {}\n", node) + cal::family_text(collectives->family);
  if (collectives)
    for (const std::string& why : collectives->unused) text += "not used: " + why + "\n";

  std::string fragment = "# Written by rehearse calibrate fit: put `extends: " + (folder / "cluster.yaml").generic_string() + "` into a scenario.\n# " + origin + "\ncluster:\n";
  std::vector<std::string> written;
  const auto write = [&](const char* name, const std::string& content) {
    write_file((folder / name).string(), content);
    written.push_back((folder / name).generic_string());
  };
  const bool own_gpu = !kernels.families.empty() || !copies.empty();
  if (own_gpu) {
    if (!kernels.gpu.measured_kernels.empty()) write("gpu.points.csv", hwmodels::measured_kernels_csv(kernels.gpu.measured_kernels));
    write("gpu.yaml", cal::gpu_yaml(kernels, copies, origin, "gpu.points.csv"));
    hwmodels::load_gpu((folder / "gpu.yaml").string());  // what we write, we can read
  }
  if (!host.empty()) {
    write("node.yaml", cal::node_yaml(cluster.node, host, own_gpu ? "gpu.yaml" : "", origin));
    hwmodels::load_node((folder / "node.yaml").string());
    fragment += "  node: ./node.yaml\n";
  } else if (network) {
    fragment += "  node: " + node + "\n";
  }
  if (own_gpu) fragment += "  gpu: ./gpu.yaml\n";
  if (network) {
    write("collectives.yaml", cal::collectives_yaml(*collectives, origin));
    hwmodels::load_collective_parameters((folder / "collectives.yaml").string());
    fragment += "  collectives: ./collectives.yaml\n";
    if (collectives->nic_efficiency) fragment += fmt::format("  nic_efficiency: {:.4g}\n", *collectives->nic_efficiency);
  }
  for (const std::string& note : kernels.notes) text += note + "\n";
  text += cal::unused_text(seen.unused);
  if (written.empty()) {
    print(text + "\nnothing in these measurements could be fitted\n");
    return kNo;
  }
  write("cluster.yaml", fragment);
  write("fit.txt", text);
  text += "\nbefore: as the files are now; one out: fitted without the row; fifth out: without every fifth row;\nlargest: the largest fifth, fitted without it; points: as one out, with the measured kernels around.\nWritten:";
  for (const std::string& file : written) text += " " + file;
  print(text + "\n");
  return kYes;
}

}  // namespace

Run add_calibrate_fit(CLI::App& app) {
  auto o = std::make_shared<Options>();
  app.add_option("MEASUREMENTS", o->files, "measurements files of one kind of machine (JSON)")->required();
  app.add_option("-o,--out", o->out, "folder for gpu.yaml, collectives.yaml, node.yaml, cluster.yaml and fit.txt")->required();
  app.add_option("--gpu", o->gpu, "GPU file to start from; default: by the name that the driver gave");
  app.add_option("--node", o->node, "node design of the collectives; default: the usual one of the GPU");
  app.footer("Example:\n  rehearse calibrate fit m.json --out my-cluster\n  rehearse run scenario.yaml --set cluster.gpu=my-cluster/gpu.yaml");
  return [o] { return fit(*o); };
}

}  // namespace rehearse::cli
