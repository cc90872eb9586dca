#include "calibrate/fit/fit_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "calibrate/fit/fit_interference.h"
#include "calibrate/fit/fit_report.h"
#include "calibrate/fit/known_machines.h"
#include "calibrate/fit/write_gpu.h"
#include "hwmodels/device/measured_points.h"

namespace rehearse::calibrate {
namespace {

/// Of the node that was measured, as far as its collectives tell.
int gpus_per_node(const Observations& seen) {
  int out = 1;
  for (const CollectiveObservation& c : seen.collectives) out = std::max(out, c.shape.ranks_per_node);
  return out;
}

}  // namespace

FittedMachine fit_machine(const Measurements& m, const std::string& gpu_name, const std::string& node_name, const std::string& folder, const std::string& date) {
  const hwmodels::Gpu gpu = hwmodels::load_gpu(gpu_name);
  const Observations seen = observe(m);
  KernelFit kernels = fit_kernels(seen, gpu);
  const std::vector<LinearFit> copies = fit_copies(seen), launches = fit_launches(seen);
  const std::vector<HostNumber> host = fit_host(seen, copies);
  const std::string origin = origin_of(m, date);
  const std::string node = node_name.empty() ? node_of(gpu_name, gpus_per_node(seen)) : node_name;
  std::optional<CollectiveFit> collectives;
  hwmodels::ClusterDescription cluster = hwmodels::load_cluster(node, 1, "rail-fat-tree", gpu_name);
  if (!seen.collectives.empty()) {
    collectives = fit_collectives(seen, cluster);
    cluster.collectives = std::make_shared<const hwmodels::CollectiveParameters>(collectives->parameters);
    if (collectives->nic_efficiency) cluster.nic_efficiency = collectives->nic_efficiency;
  }
  const bool network = collectives && collectives->family.rows > 0;
  const FamilyFit interference = fit_interference(seen, kernels.gpu, network ? &cluster : nullptr);
  if (interference.rows > 0) kernels.families.push_back(interference);

  std::string text = fmt::format("{}\nover {} ({})\n\n", origin, gpu_name, gpu.title);
  for (const FamilyFit& f : kernels.families) text += family_text(f);
  text += lines_text("Copies", copies, true) + lines_text("Launches (nothing rests on them)", launches, false) + host_text(host);
  if (network) text += fmt::format("on nodes of {}\n", node) + family_text(collectives->family);
  if (collectives)
    for (const std::string& why : collectives->unused) text += "not used: " + why + "\n";

  FittedMachine out;
  std::string fragment = "# Written by rehearse calibrate fit: put `extends: " + folder + "/cluster.yaml` into a scenario.\n# " + origin + "\ncluster:\n";
  const auto write = [&](const char* name, std::string content) { out.files.emplace_back(name, std::move(content)); };
  const bool own_gpu = !kernels.families.empty() || !copies.empty();
  if (own_gpu) {
    if (!kernels.gpu.measured_kernels.empty()) write("gpu.points.csv", hwmodels::measured_kernels_csv(kernels.gpu.measured_kernels));
    write("gpu.yaml", gpu_yaml(kernels, copies, origin, "gpu.points.csv"));
  }
  if (!host.empty()) {
    write("node.yaml", node_yaml(cluster.node, host, own_gpu ? "gpu.yaml" : "", origin));
    fragment += "  node: ./node.yaml\n";
  } else if (network) {
    fragment += "  node: " + node + "\n";
  }
  if (own_gpu) fragment += "  gpu: ./gpu.yaml\n";
  if (network) {
    write("collectives.yaml", collectives_yaml(*collectives, origin));
    fragment += "  collectives: ./collectives.yaml\n";
    if (collectives->nic_efficiency) fragment += fmt::format("  nic_efficiency: {:.4g}\n", *collectives->nic_efficiency);
  }
  for (const std::string& note : kernels.notes) text += note + "\n";
  text += unused_text(seen.unused);
  if (!out.files.empty()) write("cluster.yaml", std::move(fragment));
  out.text = std::move(text);
  return out;
}

}  // namespace rehearse::calibrate
