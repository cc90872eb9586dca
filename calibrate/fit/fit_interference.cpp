#include "calibrate/fit/fit_interference.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <map>
#include <memory>

#include "hwmodels/device/kernel_model.h"
#include "hwmodels/network/network.h"
#include "sim/executor/contention.h"

namespace rehearse::calibrate {
namespace {

using Eigen::VectorXd;
using executor::Priced;
using OverlapRows = std::vector<const OverlapObservation*>;
using Kind = OverlapSide::Kind;

/// What each row's sides cost alone does not depend on the parameters: priced once.
struct Pair {
  hwmodels::KernelCost gemm;
  hwmodels::CommunicationCost collective;
};

class OverlapPredictor {
 public:
  OverlapPredictor(const OverlapRows& rows, const hwmodels::Gpu& gpu, const hwmodels::ClusterDescription* cluster) : rows_(rows), gpu_(gpu) {
    gpu_.measured_kernels.clear();  // copied often; they hold times, not loads
    const hwmodels::KernelModel kernels(gpu_, hwmodels::ClockState::burst);
    std::map<int, std::unique_ptr<hwmodels::Network>> networks;
    for (const OverlapObservation* o : rows) {
      const bool gemm_is_timed = o->timed.kind == Kind::gemm;
      const OverlapSide &product = gemm_is_timed ? o->timed : o->beside, &other = gemm_is_timed ? o->beside : o->timed;
      Pair pair{kernels.cost(product.kernel), {}};
      if (other.kind == Kind::collective) {
        auto& network = networks[other.shape.nodes];
        if (!network) {
          hwmodels::ClusterDescription many = *cluster;
          many.nodes = other.shape.nodes;
          network = make_network(many);
        }
        pair.collective = network->collective(other.collective, Bytes{static_cast<std::int64_t>(other.bytes)}, other.shape);
      }
      pairs_.push_back(pair);
    }
  }

  VectorXd log_seconds(const std::vector<Parameter>& parameters, const VectorXd& x) const {
    hwmodels::Gpu gpu = gpu_;
    for (std::size_t i = 0; i < parameters.size(); ++i) gpu.kernel_parameters[parameters[i].name] = x[static_cast<Eigen::Index>(i)];
    const hwmodels::KernelModel kernels(gpu, hwmodels::ClockState::burst);
    const executor::Interference interference(kernels);
    VectorXd out(static_cast<Eigen::Index>(rows_.size()));
    for (std::size_t i = 0; i < rows_.size(); ++i) out[static_cast<Eigen::Index>(i)] = std::log(rows_[i]->timed.alone_seconds / rate(i, interference));
    return out;
  }

 private:
  double rate(std::size_t row, const executor::Interference& interference) const {
    const OverlapObservation& o = *rows_[row];
    const OverlapSide& other = o.timed.kind == Kind::gemm ? o.beside : o.timed;
    std::array<Priced, 3> all{interference.product_of(pairs_[row].gemm)};
    std::size_t n = 2;
    if (other.kind == Kind::collective) {
      all[1] = interference.collective_of(pairs_[row].collective);
    } else {
      all[1] = all[2] = interference.copy_of(1);
      if (other.both_directions) n = 3;
    }
    const std::array<const Priced*, 3> work{&all[0], &all[1], &all[2]};
    std::array<double, 3> rates{};
    executor::share_gpu({work.data(), n}, {rates.data(), n});
    if (o.timed.kind != Kind::gemm) return rates[1];
    // The other side is there all the time that the product runs.
    return tiles_are_late(all[0], static_cast<double>(all[1].load.sm)) && all[1].occupies ? rates[0] / (1 + static_cast<double>(all[0].late_tiles)) : rates[0];
  }

  const OverlapRows& rows_;
  hwmodels::Gpu gpu_;
  std::vector<Pair> pairs_;
};

std::vector<Parameter> parameters_of(const hwmodels::Gpu& gpu, bool collectives, bool copies) {
  const hwmodels::KernelParameters now = hwmodels::kernel_parameters_from(gpu.kernel_parameters);
  std::vector<Parameter> out;
  const auto add = [&](const char* name, double start, double least, double most) { out.push_back({name, std::clamp(start, least, most), least, most, true}); };
  if (collectives) {
    if (now.gemm_late_tiles > 0) add("gemm_late_tiles", now.gemm_late_tiles, 0.05, 2);
    else add("collective_sm_weight", now.collective_sm_weight, 0.1, 5);
    add("shared_hbm_fraction", now.shared_hbm_fraction, 0.3, 1);
    add("collective_beside_kernels", now.collective_beside_kernels, 0.1, 1);
  }
  if (copies) add("copy_beside_kernels", now.copy_beside_kernels, 0.1, 1);
  return out;
}

}  // namespace

FamilyFit fit_interference(const Observations& observations, hwmodels::Gpu& gpu, const hwmodels::ClusterDescription* cluster) {
  FamilyFit family;
  family.name = "interference";
  OverlapRows rows;
  bool collectives = false, copies = false;
  for (const OverlapObservation& o : observations.overlaps) {
    const bool copy = o.timed.kind == Kind::transfer || o.beside.kind == Kind::transfer;
    if (!copy && cluster == nullptr) continue;
    (copy ? copies : collectives) = true;
    rows.push_back(&o);
  }
  family.rows = static_cast<int>(rows.size());
  if (rows.empty()) return family;

  TimeModel m;
  m.parameters = parameters_of(gpu, collectives, copies);
  const OverlapPredictor predictor(rows, gpu, cluster);
  m.log_seconds = [&predictor, parameters = m.parameters](const VectorXd& x) { return predictor.log_seconds(parameters, x); };
  m.log_measured.resize(static_cast<Eigen::Index>(rows.size())), m.noise.resize(m.log_measured.size());
  std::vector<std::string> operations;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const OverlapObservation& o = *rows[i];
    m.log_measured[static_cast<Eigen::Index>(i)] = std::log(o.seconds), m.noise[static_cast<Eigen::Index>(i)] = o.relative_error;
    m.size.push_back(o.timed.kind == Kind::gemm ? o.beside.bytes : o.timed.bytes);
    operations.push_back(o.operation);
  }
  const TimeFit fit = fit_times(m);
  family.parameters = fitted_parameters(fit, m.parameters);
  family.scale = fit.fit.scale, family.condition = fit.fit.condition, family.converged = fit.fit.converged;
  family.errors = errors_by_operation(fit, fit.leave_one_out, operations, m.size, "B");
  family.outliers = outliers_of(fit, [&](std::size_t i) { return fmt::format("{}, {:.0f} bytes", rows[i]->operation, m.size[i]); });
  for (const FittedParameter& p : family.parameters)
    if (p.standing != Standing::not_determined) gpu.kernel_parameters[p.name] = p.value;
  return family;
}

}  // namespace rehearse::calibrate
