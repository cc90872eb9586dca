#include "calibrate/fit/fit_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "hwmodels/collective/group.h"
#include "hwmodels/network/network.h"

namespace rehearse::calibrate {
namespace {

using Eigen::VectorXd;
using hwmodels::ClusterDescription;
using hwmodels::CollectiveParameters;
using Rows = std::vector<const CollectiveObservation*>;

constexpr const char* kNic = "nic_efficiency";
/// Constants that say where a regime ends or how two add up: choices of the model, not costs of a machine.
bool is_choice(const std::string& name) { return name == "send_more_channels" || name == "latency_norm" || name == "nvls_chunk"; }

/// Which entries of the parameters a group of this shape uses.
std::pair<std::string, std::string> entries_of(const ClusterDescription& cluster, const CollectiveObservation& o, const CollectiveParameters& p) {
  ClusterDescription many = cluster;
  many.nodes = o.shape.nodes;
  const hwmodels::Group group = make_group(many, o.shape, p);
  std::pair<std::string, std::string> out;
  for (const auto& [name, timing] : p.generations)
    if (group.timing == &timing) out.first = name;
  for (const auto& [name, timing] : p.networks)
    if (group.nodes > 1 && group.network == &timing) out.second = name;
  return out;
}

/// A parameter's name is "<entry>.<number>", or nic_efficiency.
void set(CollectiveParameters& p, ClusterDescription& cluster, const std::string& name, double value) {
  if (name == kNic) {
    cluster.nic_efficiency = value;
    return;
  }
  const std::size_t dot = name.find('.');
  const std::string entry = name.substr(0, dot), number = name.substr(dot + 1);
  for (const auto& n : hwmodels::generation_numbers())
    if (const auto at = p.generations.find(entry); at != p.generations.end() && n.name == number) at->second.*n.member = value;
  for (const auto& n : hwmodels::network_numbers())
    if (const auto at = p.networks.find(entry); at != p.networks.end() && n.name == number) at->second.*n.member = value;
}

/// Observations that one network answers: on as many nodes, with the same settings of NCCL.
using NetworkKey = std::tuple<int, bool, bool, bool, hwmodels::Algorithm, bool, hwmodels::Protocol>;
NetworkKey key_of(const CollectiveObservation& o) {
  return {o.shape.nodes, o.options.nvls, o.options.sharp, o.options.forced_algorithm, o.options.algorithm, o.options.forced_protocol, o.options.protocol};
}

class Predictor {
 public:
  Predictor(const ClusterDescription& cluster, const CollectiveParameters& base, const Rows& rows) : cluster_(cluster), base_(base), rows_(rows) {
    cluster_.gpu.measured_kernels.clear();  // copied often, and of no use here
  }
  VectorXd log_seconds(const std::vector<Parameter>& parameters, const VectorXd& x) const {
    auto own = std::make_shared<CollectiveParameters>(base_);
    ClusterDescription cluster = cluster_;
    for (std::size_t i = 0; i < parameters.size(); ++i) set(*own, cluster, parameters[i].name, x[static_cast<Eigen::Index>(i)]);
    cluster.collectives = own;
    std::map<NetworkKey, std::unique_ptr<hwmodels::Network>> networks;
    VectorXd out(static_cast<Eigen::Index>(rows_.size()));
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const CollectiveObservation& o = *rows_[i];
      auto& network = networks[key_of(o)];
      if (!network) {
        cluster.nodes = o.shape.nodes;
        network = make_network(cluster, o.options);
      }
      const Bytes bytes{static_cast<std::int64_t>(o.bytes)};
      const Duration time = o.kind == CollectiveKind::send_recv ? network->point_to_point(bytes, o.shape.nodes == 1, o.shape.ranks > 2 ? o.shape.ranks_per_node : 1, o.shape).duration
                                                                : network->collective(o.kind, bytes, o.shape).duration;
      out[static_cast<Eigen::Index>(i)] = std::log(std::max(to_seconds(time), 1e-9));
    }
    return out;
  }

 private:
  ClusterDescription cluster_;
  const CollectiveParameters& base_;
  const Rows& rows_;
};

std::vector<Parameter> parameters_of(const CollectiveFit& fit, const ClusterDescription& cluster) {
  std::vector<Parameter> out;
  const auto add = [&](const std::string& name, double start) {
    if (start <= 0) return;  // a mechanism that this generation does not have
    const bool fraction = name.find("efficiency") != std::string::npos;
    const double least = fraction ? 0.2 : start / 5, most = fraction ? 1.2 : start * 5;
    out.push_back({name, std::clamp(start, least, most), least, most, true});
  };
  for (const std::string& g : fit.generations)
    for (const auto& n : hwmodels::generation_numbers())
      if (!is_choice(n.name)) add(g + "." + n.name, fit.parameters.generations.at(g).*n.member);
  for (const std::string& g : fit.networks)
    for (const auto& n : hwmodels::network_numbers())
      if (!is_choice(n.name)) add(g + "." + n.name, fit.parameters.networks.at(g).*n.member);
  if (!fit.networks.empty()) {
    const double start = std::clamp(cluster.effective_nic_efficiency(), 0.1, 1.0);
    out.push_back({kNic, start, 0.1, 1, true});
  }
  return out;
}

}  // namespace

CollectiveFit fit_collectives(const Observations& observations, const ClusterDescription& cluster) {
  CollectiveFit out;
  out.parameters = cluster.collectives ? *cluster.collectives : hwmodels::collective_parameters();
  Rows rows;
  std::set<std::string> generations, networks;
  for (const CollectiveObservation& o : observations.collectives) {
    if (o.shape.ranks_per_node > cluster.node.gpus) {
      out.unused.push_back(fmt::format("{}: a {} has {} GPUs", o.operation, cluster.node.name, cluster.node.gpus));
      continue;
    }
    if (o.shape.nodes > 1 && cluster.node.nic.count == 0) {
      out.unused.push_back(fmt::format("{}: a {} has no network", o.operation, cluster.node.name));
      continue;
    }
    const auto [generation, network] = entries_of(cluster, o, out.parameters);
    generations.insert(generation);
    if (!network.empty()) networks.insert(network);
    rows.push_back(&o);
  }
  out.family.name = "collectives", out.family.rows = static_cast<int>(rows.size());
  if (rows.empty()) return out;
  out.generations.assign(generations.begin(), generations.end()), out.networks.assign(networks.begin(), networks.end());

  TimeModel m;
  m.parameters = parameters_of(out, cluster);
  m.worst_spread = 0.1;
  m.linear_refits = true;
  const CollectiveParameters base = out.parameters;
  const Predictor predictor(cluster, base, rows);
  m.log_seconds = [&predictor, parameters = m.parameters](const VectorXd& x) { return predictor.log_seconds(parameters, x); };
  m.log_measured.resize(static_cast<Eigen::Index>(rows.size())), m.noise.resize(m.log_measured.size());
  std::vector<std::string> operations;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    m.log_measured[static_cast<Eigen::Index>(i)] = std::log(rows[i]->seconds), m.noise[static_cast<Eigen::Index>(i)] = rows[i]->relative_error;
    m.size.push_back(rows[i]->bytes);
    operations.push_back(rows[i]->operation);
  }
  const TimeFit fit = fit_times(m);
  out.family.parameters = fitted_parameters(fit, m.parameters);
  out.family.scale = fit.fit.scale, out.family.condition = fit.fit.condition, out.family.converged = fit.fit.converged;
  out.family.errors = errors_by_operation(fit, fit.leave_one_out, operations, m.size, "B");
  out.family.outliers = outliers_of(fit, [&](std::size_t i) { return fmt::format("{}, {:.0f} bytes", rows[i]->operation, rows[i]->bytes); });
  ClusterDescription changed = cluster;
  for (const FittedParameter& p : out.family.parameters) {
    if (p.standing == Standing::not_determined) continue;
    set(out.parameters, changed, p.name, p.value);
    if (p.name == kNic) out.nic_efficiency = p.value;
  }
  return out;
}

std::string collectives_yaml(const CollectiveFit& fit, const std::string& origin) {
  std::string text = "# Written by rehearse calibrate fit. Microseconds, GB/s, MiB; meanings: hwmodels/collective/parameters.h.\n";
  std::map<std::string, const FittedParameter*> known;
  for (const FittedParameter& p : fit.family.parameters) known[p.name] = &p;
  const auto line = [&](const std::string& entry, const std::string& name, double value) {
    const auto at = known.find(entry + "." + name);
    const bool fitted = at != known.end() && at->second->standing != Standing::not_determined;
    text += fmt::format("    {}: {:.6g}{}\n", name, value, fitted ? at->second->standing == Standing::at_bound ? "  # fitted, at its bound" : fmt::format("  # fitted, +- {:.2g}", at->second->standard_error) : "");
  };
  std::string source = "calibrate fit: " + origin + "; what is not marked as fitted is as in nccl.yaml";
  std::replace(source.begin(), source.end(), '"', '\'');
  if (!fit.generations.empty()) text += "generations:\n";
  for (const std::string& g : fit.generations) {
    text += fmt::format("  {}:\n    source: \"{}\"\n", g, source);
    for (const auto& n : hwmodels::generation_numbers()) line(g, n.name, fit.parameters.generations.at(g).*n.member);
  }
  if (!fit.networks.empty()) text += "networks:\n";
  for (const std::string& g : fit.networks) {
    text += fmt::format("  {}:\n    source: \"{}\"\n    ll128: {}\n", g, source, fit.parameters.networks.at(g).ll128);
    for (const auto& n : hwmodels::network_numbers()) line(g, n.name, fit.parameters.networks.at(g).*n.member);
  }
  return text;
}

}  // namespace rehearse::calibrate
