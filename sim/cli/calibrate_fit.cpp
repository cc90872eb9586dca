// rehearse calibrate fit: GPU file, table of measured kernels, NCCL constants, node and a cluster fragment from measurements.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "calibrate/fit/fit_machine.h"
#include "calibrate/fit/known_machines.h"
#include "hwmodels/collective/parameters.h"
#include "hwmodels/device/gpu.h"
#include "hwmodels/topology/cluster.h"
#include "sim/cli/calibrate.h"
#include "sim/cli/output.h"
#include "sim/core/error.h"

namespace rehearse::cli {
namespace {

namespace cal = calibrate;

struct CalibrateFitOptions {
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

std::string base_gpu(const CalibrateFitOptions& o, const cal::Measurements& m) {
  if (!o.gpu.empty()) return o.gpu;
  const std::string* name = fact<std::string>(m.machine, "gpu");
  if (name == nullptr) throw ConfigError(Diagnostic{{o.files.front(), 0, 0}, "machine.gpu", "the file does not say which GPU was measured", "Name the file to start from: --gpu h100-sxm (rehearse hardware list)", ""});
  if (const auto known = cal::gpu_of(*name)) return *known;
  throw ConfigError(Diagnostic{{o.files.front(), 0, 0}, "machine.gpu", fmt::format("no file of ours is of '{}'", *name), "Name one that is near, or a file of your own: --gpu h100-sxm, --gpu ./my-gpu.yaml", ""});
}

int fit(const CalibrateFitOptions& o) {
  const cal::Measurements m = read_all(o.files);
  const std::filesystem::path folder(o.out);
  make_folder(o.out);
  check_writable((folder / "fit.txt").string());
  const cal::FittedMachine fitted = cal::fit_machine(m, base_gpu(o, m), o.node, folder.generic_string(), today());
  if (fitted.files.empty()) {
    print(fitted.text + "\nnothing in these measurements could be fitted\n");
    return kNo;
  }
  std::string written;
  const auto write = [&](const std::string& name, const std::string& content) {
    const std::string path = (folder / name).string();
    write_file(path, content);
    written += " " + path;
    // What we write, we can read.
    if (name == "gpu.yaml") hwmodels::load_gpu(path);
    if (name == "node.yaml") hwmodels::load_node(path);
    if (name == "collectives.yaml") hwmodels::load_collective_parameters(path);
  };
  for (const auto& [name, content] : fitted.files) write(name, content);
  write("fit.txt", fitted.text);
  print(fitted.text + "\nbefore: as the files are now; one out: fitted without the row; fifth out: without every fifth row;\nlargest: the largest fifth, fitted without it; points: as one out, with the measured kernels around.\nWritten:" + written + "\n");
  return kYes;
}

}  // namespace

Run add_calibrate_fit(CLI::App& app) {
  auto o = std::make_shared<CalibrateFitOptions>();
  app.add_option("MEASUREMENTS", o->files, "measurements files of one kind of machine (JSON)")->required();
  app.add_option("-o,--out", o->out, "folder for gpu.yaml, collectives.yaml, node.yaml, cluster.yaml and fit.txt")->required();
  app.add_option("--gpu", o->gpu, "GPU file to start from; default: by the name that the driver gave");
  app.add_option("--node", o->node, "node design of the collectives; default: the usual one of the GPU");
  app.footer("Example:\n  rehearse calibrate fit m.json --out my-cluster\nThen write `extends: my-cluster/cluster.yaml` into a scenario, or name single files: --set cluster.gpu=my-cluster/gpu.yaml");
  return [o] { return fit(*o); };
}

}  // namespace rehearse::cli
