#include "hwmodels/topology/routes.h"

#include <algorithm>

namespace rehearse::hwmodels {
namespace {

class Assembler {
 public:
  explicit Assembler(const RouteTables& tables) : t_(tables) {}

  std::vector<int> between(int a, int b, int flow) {
    int n = t_.gpus_per_machine, machine_a = a / n, machine_b = b / n;
    bool switched = !t_.gpu_to_nvswitch.empty() &&
                    machine_a / t_.machines_per_domain == machine_b / t_.machines_per_domain;
    if (switched) return {t_.gpu_to_nvswitch[a], t_.gpu_to_nvswitch[b] + 1};
    if (machine_a == machine_b) {
      int direct = t_.gpu_pair.empty() ? -1 : t_.gpu_pair[static_cast<std::size_t>(a) * n + b % n];
      if (direct >= 0) return {direct};
      path_ = {t_.gpu_to_pcie[a]};
      across_switches(machine_a, t_.switch_of_gpu[a % n], t_.switch_of_gpu[b % n]);
      path_.push_back(t_.gpu_to_pcie[b] + 1);
      return std::move(path_);
    }
    int nic_a = nic_beside(a), nic_b = nic_beside(b);
    path_ = {t_.gpu_to_pcie[a]};
    across_switches(machine_a, t_.switch_of_gpu[a % n], t_.switch_of_nic[nic_a % t_.nics_per_machine]);
    path_.push_back(t_.nic_to_pcie[nic_a] + 1);
    path_.push_back(t_.nic_to_leaf[nic_a]);
    int leaf_a = t_.leaf_of_nic[nic_a], leaf_b = t_.leaf_of_nic[nic_b];
    if (leaf_a != leaf_b) {
      int spine = flow % t_.spines;
      path_.push_back(t_.leaf_to_spine[leaf_a * t_.spines + spine]);
      path_.push_back(t_.leaf_to_spine[leaf_b * t_.spines + spine] + 1);
    }
    path_.push_back(t_.nic_to_leaf[nic_b] + 1);
    path_.push_back(t_.nic_to_pcie[nic_b]);
    across_switches(machine_b, t_.switch_of_nic[nic_b % t_.nics_per_machine], t_.switch_of_gpu[b % n]);
    path_.push_back(t_.gpu_to_pcie[b] + 1);
    return std::move(path_);
  }

 private:
  int nic_beside(int gpu) const {
    int n = t_.gpus_per_machine;
    return gpu / n * t_.nics_per_machine + gpu % n * t_.nics_per_machine / t_.nics_designed_for;
  }

  void across_switches(int machine, int from, int to) {
    if (from == to) return;
    int first = machine * t_.switches_per_machine;
    path_.push_back(t_.pcie_to_cpu[first + from]);
    int here = t_.socket_of_switch[from], there = t_.socket_of_switch[to];
    for (; here < there; ++here) path_.push_back(t_.cpu_to_next[machine * t_.sockets + here]);
    for (; here > there; --here) path_.push_back(t_.cpu_to_next[machine * t_.sockets + here - 1] + 1);
    path_.push_back(t_.pcie_to_cpu[first + to] + 1);
  }

  const RouteTables& t_;
  std::vector<int> path_;
};

}  // namespace

std::vector<int> assembled_route(const RouteTables& tables, int a, int b, int flow) {
  if (a == b) return {};
  return Assembler(tables).between(a, b, flow);
}

}  // namespace rehearse::hwmodels
