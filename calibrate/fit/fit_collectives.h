// Fits the constants of hwmodels/data/collective/nccl.yaml to collectives measured on one kind of machine.
// Leaves out NCCL's own choice of algorithm, which is taken as hwmodels/collective/tuner.h predicts it.
#pragma once

#include <string>
#include <vector>

#include "calibrate/fit/fit_kernels.h"
#include "hwmodels/collective/parameters.h"
#include "hwmodels/topology/cluster.h"

namespace rehearse::calibrate {

struct CollectiveFit {
  FamilyFit family;                  // parameters are named "hopper.launch", "infiniband.ring_step_ll", "nic_efficiency"
  hwmodels::CollectiveParameters parameters;
  std::vector<std::string> generations, networks;  // the ones that the measurements were about
  std::optional<double> nic_efficiency;            // when it was fitted
  std::vector<std::string> unused;                 // collectives that this machine cannot run, and why
};

/// `cluster`: node design, GPU and fabric that the measurements were made on; its number of nodes does not matter.
/// Each latency and ramp lies within a factor of 5 of the base's, each efficiency in 0.2 .. 1.2; constants that the data do
/// not tell to better than a tenth of that range stay. Send/receive in a ring counts as all GPUs of a node sending at once.
CollectiveFit fit_collectives(const Observations& observations, const hwmodels::ClusterDescription& cluster);

/// A file that `cluster.collectives: ./my-nccl.yaml` reads: the entries that were fitted, whole.
std::string collectives_yaml(const CollectiveFit& fit, const std::string& origin);

}  // namespace rehearse::calibrate
