// A machine of known truth behind the probe's one door: its times are those of the program's own models with parameters that
// differ from the files', with known noise and outliers, on a made-up clock. What each operation means is told here a second
// time, from operations.cpp's page alone, so that the fit's reading of it is tested too.
#pragma once

#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "calibrate/probe/cases.h"
#include "calibrate/probe/device.h"
#include "calibrate/probe/sampling.h"
#include "hwmodels/collective/parameters.h"
#include "hwmodels/device/kernel_model.h"
#include "hwmodels/network/network.h"
#include "sim/executor/contention.h"
#include "tests/unit/calibrate_fit/synthetic_kernels.h"

namespace rehearse::calibrate::test {

class TrueMachine final : public Device {
 public:
  explicit TrueMachine(double noise, double outliers, unsigned seed) : noise_(noise), outliers_(outliers), draw_(seed) {
    cluster = hwmodels::load_cluster("dgx-h100", 2);
    cluster.gpu = true_gpu();
    auto& p = cluster.gpu.kernel_parameters;
    p["softmax_fraction"] = 0.5, p["cross_entropy_fraction"] = 0.45, p["reduction_fraction"] = 0.7, p["memset_fraction"] = 0.75, p["permute_fraction"] = 0.45, p["gemm_fp32_fraction"] = 0.7, p["gemm_unaligned_fraction"] = 0.4;
    p["gemm_late_tiles"] = 0.8, p["shared_hbm_fraction"] = 0.8, p["collective_beside_kernels"] = 0.75, p["copy_beside_kernels"] = 0.85;
    cluster.gpu.host_to_device = BytesPerSecond{48e9}, cluster.gpu.device_to_host = BytesPerSecond{44e9};
    auto constants = std::make_shared<hwmodels::CollectiveParameters>(hwmodels::collective_parameters());
    auto& hopper = constants->generations["hopper"];
    hopper.launch = 14, hopper.ring_efficiency = 0.85, hopper.gather_efficiency = 0.8, hopper.direct_launch = 20, hopper.direct_efficiency = 0.7, hopper.nvls_efficiency = 0.7;
    constants->networks["infiniband"].ring_step_simple = 40;
    cluster.collectives = constants;
    cluster.nic_efficiency = 0.8;
    cluster.node.cpu.copy_bandwidth = BytesPerSecond{350e9}, cluster.node.cpu.update_bandwidth = BytesPerSecond{210e9}, cluster.node.cpu.pageable_fraction = 0.25;
    cluster.node.nvme.read = BytesPerSecond{12e9}, cluster.node.nvme.write = BytesPerSecond{6e9};
    kernels_ = std::make_unique<hwmodels::KernelModel>(cluster.gpu, hwmodels::ClockState::burst);
  }

  hwmodels::ClusterDescription cluster;

  /// Made-up time alone, so that every run of a test draws the same noise.
  Clock clock() {
    return [this] { return now_ += 1e-7; };
  }
  Facts machine() override { return {{"gpu", std::string("NVIDIA H100 80GB HBM3")}, {"compute_capability", std::int64_t{90}}, {"gpu_memory_free_bytes", std::int64_t{79} << 30}}; }
  Facts software() override { return {{"nccl", std::string("2.27.7")}, {"cublaslt", std::string("13.0.2")}}; }
  std::vector<std::string> warnings() override { return {}; }
  calibrate::ClockState clocks() override { return {1980, {}}; }
  std::unique_ptr<Work> prepare(const std::string& operation, const Facts& p) override {
    std::uniform_real_distribution<double> uniform(0, 1);
    const double outlier = uniform(draw_) < outliers_ ? 1.3 + 0.5 * uniform(draw_) : 1;
    return std::make_unique<NoisyWork>(*this, seconds(operation, p) * outlier);
  }

  /// The truth.
  double seconds(const std::string& operation, const Facts& p) {
    if (operation == "gemm" || operation == "grouped_gemm") return kernel_seconds(gemm(p, operation == "grouped_gemm"));
    if (operation.starts_with("attention_")) return kernel_seconds(attention(p, operation == "attention_backward"));
    if (operation == "memory_kernel") return kernel_seconds(stream(p));
    if (operation == "kernel_launch") return word(p, "what") == "latency" ? 9e-6 : word(p, "what") == "gap" ? 1.3e-6 : 2.4e-6;
    if (operation == "graph_launch") {
      const auto nodes = static_cast<double>(whole(p, "nodes"));
      return word(p, "what") == "gap" ? 1.1e-6 : word(p, "what") == "host" ? 4e-6 + 0.9e-6 * nodes : 8e-6 + 1.1e-6 * nodes;
    }
    if (operation == "transfer") return copy_seconds(p);
    if (operation == "collective") return to_seconds(collective(p).duration);
    if (operation == "overlap") return overlap_seconds(p);
    if (operation == "host_memory") return static_cast<double>(whole(p, "bytes")) / (threads_share(p) * (word(p, "kernel") == "triad" ? 350e9 : 380e9));
    if (operation == "host_adam") return 30.0 * static_cast<double>(whole(p, "elements")) / (threads_share(p) * 210e9);
    if (operation == "file") {
      const double full = word(p, "direction") == "read" ? 12e9 : 6e9, depth = static_cast<double>(whole(p, "depth")), block = static_cast<double>(whole(p, "block_bytes"));
      return static_cast<double>(whole(p, "bytes")) / std::min(full, depth * block / (100e-6 + block / full * 4));
    }
    throw NotPossible("this machine cannot " + operation);
  }

 private:
  struct NoisyWork final : Work {
    NoisyWork(TrueMachine& m, double s) : machine(m), one(s) {}
    double run(std::int64_t count) override {
      const double s = one * static_cast<double>(count) * std::exp(machine.noise_ * machine.gauss_(machine.draw_));
      machine.now_ += s;
      return s;
    }
    TrueMachine& machine;
    double one;
  };

  static std::int64_t whole(const Facts& p, const char* key, std::int64_t otherwise = 0) {
    const auto at = p.find(key);
    return at == p.end() ? otherwise : std::get<std::int64_t>(at->second);
  }
  static std::string word(const Facts& p, const char* key, const char* otherwise = "") {
    const auto at = p.find(key);
    return at == p.end() ? otherwise : std::get<std::string>(at->second);
  }
  static bool yes(const Facts& p, const char* key, bool otherwise = false) {
    const auto at = p.find(key);
    return at == p.end() ? otherwise : std::get<bool>(at->second);
  }
  double threads_share(const Facts& p) const { return std::min(1.0, static_cast<double>(whole(p, "threads")) / 24); }
  double kernel_seconds(const model::KernelSpec& s) const { return to_seconds(kernels_->cost(s).duration); }

  static model::KernelSpec gemm(const Facts& p, bool grouped) {
    model::KernelSpec s;
    s.kind = grouped ? model::KernelKind::grouped_gemm : model::KernelKind::gemm;
    s.batch = grouped ? whole(p, "groups") : whole(p, "batch", 1);
    s.m = whole(p, "m"), s.n = whole(p, "n"), s.k = whole(p, "k");
    s.dtype = *dtype_named(word(p, "dtype"));
    s.output_dtype = word(p, "output_dtype").empty() ? s.dtype : *dtype_named(word(p, "output_dtype"));
    s.accumulate = yes(p, "accumulate");
    const std::string role = word(p, "role", "forward");
    s.role = role == "forward" ? model::GemmRole::forward : role == "data_gradient" ? model::GemmRole::data_gradient : model::GemmRole::weight_gradient;
    return s;
  }
  static model::KernelSpec attention(const Facts& p, bool backward) {
    model::KernelSpec s;
    s.kind = backward ? model::KernelKind::attention_backward : model::KernelKind::attention_forward;
    s.attention = model::AttentionKernel::flash2;
    s.batch = whole(p, "batch"), s.heads = whole(p, "heads"), s.kv_heads = whole(p, "kv_heads"), s.query_length = whole(p, "query_length"), s.key_length = whole(p, "key_length");
    s.head_dim = s.value_head_dim = whole(p, "head_dim"), s.causal = yes(p, "causal");
    return s;
  }
  static model::KernelSpec stream(const Facts& p) {
    using K = model::KernelKind;
    static const std::map<std::string, K> kinds{{"copy", K::elementwise}, {"add", K::elementwise}, {"cast", K::elementwise}, {"rms_norm", K::normalization}, {"layer_norm", K::normalization},
                                                {"softmax", K::softmax}, {"cross_entropy", K::cross_entropy}, {"adam", K::optimizer}, {"memset", K::memset}, {"reduction", K::reduction}};
    model::KernelSpec s;
    s.kind = kinds.at(word(p, "kernel"));
    s.bytes_read = whole(p, "bytes_read"), s.bytes_written = whole(p, "bytes_written");
    return s;
  }

  double copy_seconds(const Facts& p) const {
    const std::string direction = word(p, "direction");
    const double bytes = static_cast<double>(whole(p, "bytes")), down = cluster.gpu.device_to_host.value, up = cluster.gpu.host_to_device.value;
    double rate = direction == "host_to_device" ? up : direction == "device_to_host" ? down : direction == "both" ? std::min(up, down) : direction == "device_to_device" ? 1.2e12 : 3.2e11;
    if (!yes(p, "pinned", true)) rate *= cluster.node.cpu.pageable_fraction;
    return 9e-6 + bytes / rate * static_cast<double>(std::max<std::int64_t>(1, whole(p, "gpus", 1) / 2));
  }

  hwmodels::CommunicationCost collective(const Facts& p) {
    GroupShape g;
    g.ranks = static_cast<int>(whole(p, "ranks")), g.nodes = static_cast<int>(whole(p, "nodes", 1)), g.ranks_per_node = g.ranks / g.nodes;
    g.stride = static_cast<int>(whole(p, "stride", 1)), g.groups_per_node = static_cast<int>(whole(p, "groups", 1));
    auto& network = networks_[g.nodes];
    if (!network) {
      hwmodels::ClusterDescription many = cluster;
      many.nodes = g.nodes;
      network = make_network(many);
    }
    const std::string kind = word(p, "collective", "all_reduce");
    const Bytes bytes{whole(p, "bytes")};
    if (kind == "send_recv") return network->point_to_point(bytes, g.nodes == 1, word(p, "pattern", "pair") == "ring" ? g.ranks_per_node : 1, g);
    for (int k = 0; k <= static_cast<int>(CollectiveKind::send_recv); ++k)
      if (name_of(static_cast<CollectiveKind>(k)) == kind) return network->collective(static_cast<CollectiveKind>(k), bytes, g);
    throw NotPossible("no such collective");
  }

  double overlap_seconds(const Facts& p) {
    const executor::Interference interference(*kernels_);
    const Facts product{{"m", whole(p, "m")}, {"n", whole(p, "n")}, {"k", whole(p, "k")}, {"dtype", word(p, "dtype", "bf16")}};
    const bool copies = word(p, "timed") == "transfer" || word(p, "beside") == "transfer";
    std::vector<executor::Priced> all{interference.product_of(kernels_->cost(gemm(product, false)))};
    if (copies) all.resize(word(p, "direction") == "both" ? 3 : 2, interference.copy_of(1));
    else all.push_back(interference.collective_of(collective(p)));
    std::vector<const executor::Priced*> work;
    for (const auto& w : all) work.push_back(&w);
    std::vector<double> rate(all.size());
    executor::share_gpu(work, rate);
    const bool late = !copies && all[0].load.sm + all[1].load.sm > 1;
    if (word(p, "timed") == "gemm") return seconds("gemm", product) / rate[0] * (late ? 1.8 : 1.0);
    return (copies ? copy_seconds(p) : to_seconds(collective(p).duration)) / rate[1];
  }

  double noise_, outliers_, now_ = 0;
  std::mt19937_64 draw_;
  std::normal_distribution<double> gauss_{0, 1};
  std::unique_ptr<hwmodels::KernelModel> kernels_;
  std::map<int, std::unique_ptr<hwmodels::Network>> networks_;
};

}  // namespace rehearse::calibrate::test
