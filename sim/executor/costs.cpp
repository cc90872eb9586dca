#include "sim/executor/costs.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace rehearse::executor {
namespace {

bool other_node(const plan::RankClass& c, std::uint16_t peer) {
  return std::find(c.stage_peers_other_node.begin(), c.stage_peers_other_node.end(), peer) != c.stage_peers_other_node.end();
}

/// Faster, so it loads what it uses more.
hwmodels::CommunicationCost without_waits(hwmodels::CommunicationCost cost) {
  if (cost.waits <= Duration{}) return cost;
  const Duration moving = cost.duration - std::exchange(cost.waits, Duration{});
  cost.use = cost.use.scaled(to_seconds(cost.duration) / to_seconds(moving));
  cost.duration = moving;
  return cost;
}

/// What each collective costs each group that was asked about. Most classes lie on the machines as others do.
class CollectivePrices {
 public:
  CollectivePrices(const plan::Plan& plan, const hwmodels::Network& network) : plan_(plan), network_(network), known_(plan.collectives.size()) {}
  const hwmodels::CommunicationCost& of(std::size_t spec, const GroupShape& group) {
    auto& known = known_[spec];
    for (const auto& [shape, cost] : known)
      if (shape == group) return cost;
    const plan::CollectiveSpec& c = plan_.collectives[spec];
    // The only messages among a tensor group are the pieces of overlapped products.
    if (c.kind == CollectiveKind::send_recv && c.axis == plan::GroupAxis::tensor) return known.emplace_back(group, network_.peer_copies(c.bytes, group)).second;
    hwmodels::CommunicationCost cost = c.tokens.choices > 0 ? network_.dispatch(std::max(c.bytes, c.fullest), c.tokens, group) : network_.collective(c.kind, std::max(c.bytes, c.fullest), group);
    if (c.registered) cost.use.sms = network_.registered_sms(c.kind, group, cost.use.sms);
    if (c.host_waits) cost = without_waits(cost);
    return known.emplace_back(group, cost).second;
  }

 private:
  const plan::Plan& plan_;
  const hwmodels::Network& network_;
  std::vector<std::vector<std::pair<GroupShape, hwmodels::CommunicationCost>>> known_;
};

/// The same for messages, by size, place of the other side, how many go at once, and the communicator of a pipeline's stages.
class MessagePrices {
 public:
  explicit MessagePrices(const hwmodels::Network& network) : network_(network) {}
  const hwmodels::CommunicationCost& of(const plan::MessageSpec& message, bool same_node, const GroupShape& pipeline) {
    const int together = std::max(1, pipeline.groups_per_node);
    const GroupShape communicator = message.batched && pipeline.ranks > 1 ? pipeline : hwmodels::Network::pair_of(same_node);
    auto& known = known_[{message.bytes.value, same_node, together}];
    for (const auto& [shape, cost] : known)
      if (shape == communicator) return cost;
    return known.emplace_back(communicator, network_.point_to_point(message.bytes, same_node, together, communicator)).second;
  }

 private:
  const hwmodels::Network& network_;
  std::map<std::tuple<std::int64_t, bool, int>, std::vector<std::pair<GroupShape, hwmodels::CommunicationCost>>> known_;
};

}  // namespace

Interference::Interference(const hwmodels::KernelModel& kernels, double collective_sm_factor)
    : sms(std::max(1, kernels.gpu().sms)), sm_weight(kernels.rates().p.collective_sm_weight * collective_sm_factor), hbm(kernels.rates().p.shared_hbm_fraction),
      collective(kernels.rates().p.collective_beside_kernels), copy(kernels.rates().p.copy_beside_kernels),
      late_tiles(kernels.rates().p.gemm_late_tiles * collective_sm_factor) {}

// A share of the datasheet bandwidth as a share of what can be had together.
float Interference::of_hbm(double share) const { return static_cast<float>(hbm == 1 ? share : std::min(1.0, share / hbm)); }

Priced Interference::kernel_of(const hwmodels::KernelCost& cost) const {
  return {cost.duration.count(), {.sm = static_cast<float>(cost.sm_share), .hbm = of_hbm(cost.hbm_share)}, false};
}

Priced Interference::product_of(const hwmodels::KernelCost& cost) const {
  Priced p = kernel_of(cost);
  p.late_tiles = static_cast<float>(late_tiles);
  return p;
}

Priced Interference::collective_of(const hwmodels::CommunicationCost& cost) const {
  const auto& u = cost.use;
  return {cost.duration.count(),
          {.sm = static_cast<float>(u.sms * sm_weight) / static_cast<float>(sms), .hbm = of_hbm(u.hbm), .nvlink = static_cast<float>(u.nvlink), .nic = static_cast<float>(u.nic),
           .pcie = static_cast<float>(u.pcie)},
          true, static_cast<float>(collective)};
}

// PCIe is full duplex: a copy fills one direction.
Priced Interference::copy_of(std::int64_t picoseconds) const { return {picoseconds, {.pcie = 0.5f}, true, static_cast<float>(copy)}; }

namespace {

int data_groups_per_node(const plan::Plan& plan) {
  return plan.classes.empty() ? 1 : std::max(1, plan.classes.front().groups[static_cast<std::size_t>(plan::GroupAxis::data)].groups_per_node);
}

/// Ranks that copy in turn: of each of the node's data-parallel groups one at a time.
Duration copy_time(const plan::CopySpec& spec, const Hardware& hardware, int data_groups) {
  constexpr Duration kStart{10'000'000};   // assumption: 10 us
  const bool down = spec.direction == plan::CopySpec::Direction::device_to_host;
  const hwmodels::HostRates& host = hardware.host;
  const hwmodels::Gpu& gpu = hardware.kernels.gpu();
  BytesPerSecond rate = down ? host.to_host : host.to_device;
  const BytesPerSecond alone = down ? host.to_host_alone : host.to_device_alone;
  if (spec.turns > 1) rate = std::max(rate, alone * (1.0 / data_groups));
  if (spec.alone) rate = alone;
  if (rate.value <= 0) rate = down ? gpu.device_to_host : gpu.host_to_device;
  if (!spec.pinned) rate = host.pageable_most.value > 0 ? std::min(rate * host.pageable, host.pageable_most) : rate * host.pageable;
  const BytesPerSecond disk = down ? host.nvme_write : host.nvme_read;
  if (spec.disk && disk.value > 0) rate = std::min(rate, disk);
  return spec.turns * (spec.bytes / rate + kStart);
}

void add_list_of_kernels(const plan::Plan& plan, const hwmodels::KernelModel& kernels, const Interference& interference, const Ablation& ablation, CostTable& table) {
  for (const model::KernelSpec& spec : plan.kernels) {
    const hwmodels::KernelCost cost = kernels.cost(spec);
    table.kernel_costs.push_back(cost);
    // Products on several streams (a grouped product that is not one kernel: Transformer Engine, multi_stream_cublas_gemm, four; pieces of one that waits for
    // its operand): while one's late tiles run, the next one's fill the other SMs, so it loses no more than the SMs that are held.
    const bool product = model::is_product(spec.kind) && spec.kind != model::KernelKind::grouped_gemm && !spec.staggered;
    table.kernels.push_back(!ablation.kernels ? Priced{} : product ? interference.product_of(cost) : interference.kernel_of(cost));
  }
}

/// One list for every pace that there is.
void add_kernels(const plan::Plan& plan, const Hardware& hardware, const Interference& interference, const Ablation& ablation, CostTable& table) {
  if (hardware.paces.empty()) return add_list_of_kernels(plan, hardware.kernels, interference, ablation, table);
  std::vector<hwmodels::Pace> listed;
  for (const hwmodels::Pace pace : hardware.paces) {
    const auto list = static_cast<std::size_t>(std::find(listed.begin(), listed.end(), pace) - listed.begin());
    table.first_kernel.push_back(list * plan.kernels.size());
    if (list < listed.size()) continue;
    listed.push_back(pace);
    add_list_of_kernels(plan, hardware.kernels.at(pace), interference, ablation, table);
  }
}

}  // namespace

CostTable price(const plan::Plan& plan, const Hardware& hardware, const Ablation& ablation) {
  CostTable table;
  const Interference interference(hardware.kernels, hardware.collective_sm_factor);
  add_kernels(plan, hardware, interference, ablation, table);
  CollectivePrices collective_prices(plan, hardware.network);
  MessagePrices message_prices(hardware.network);
  for (const plan::RankClass& c : plan.classes) {
    auto& costs = table.collective_costs.emplace_back();
    auto& loads = table.collectives.emplace_back();
    costs.reserve(plan.collectives.size());
    loads.reserve(plan.collectives.size());
    for (std::size_t i = 0; i < plan.collectives.size(); ++i) {
      costs.push_back(collective_prices.of(i, c.groups[static_cast<std::size_t>(plan.collectives[i].axis)]));
      loads.push_back(ablation.communication ? interference.collective_of(costs.back()) : Priced{});
    }
    auto& messages = table.messages.emplace_back();
    for (const plan::MessageSpec& spec : plan.messages) {
      const bool remote = other_node(c, spec.peer);
      Priced p = ablation.communication ? interference.collective_of(message_prices.of(spec, !remote, c.groups[static_cast<std::size_t>(plan::GroupAxis::pipeline)])) : Priced{};
      p.load.sm = p.load.hbm = 0;  // a copy engine's worth: does not disturb kernels, nor they it
      p.beside_kernels = 1;
      p.load.nic *= 0.5f;          // one direction of a full-duplex card; collectives use both
      messages.push_back(p);
    }
  }
  for (const plan::CopySpec& spec : plan.copies) table.copies.push_back(interference.copy_of(copy_time(spec, hardware, data_groups_per_node(plan)).count()));
  for (const plan::HostSpec& spec : plan.host_works) {
    auto time = [](Bytes bytes, BytesPerSecond rate) { return bytes > Bytes{0} && rate.value > 0 ? (bytes / rate).count() : 0; };
    const std::int64_t compute = hardware.host.update_time(spec.dram, spec.pinned, spec.threads).count() + hardware.host.touch_time(spec.fresh, spec.threads).count(), read = time(spec.disk_read, hardware.host.nvme_read), write = time(spec.disk_write, hardware.host.nvme_write);
    // Pipelined, the disk still does one thing at a time.
    table.host_works.push_back(!ablation.kernels ? 0 : spec.pipelined ? std::max(compute, read + write) : compute + read + write);
  }
  if (!ablation.contention) {
    auto clear = [](std::vector<Priced>& all) { for (Priced& p : all) p.load = {}, p.beside_kernels = 1, p.late_tiles = 0; };
    clear(table.kernels);
    clear(table.copies);
    for (auto& all : table.collectives) clear(all);
    for (auto& all : table.messages) clear(all);
  }
  return table;
}

double serial_seconds(const plan::Plan& plan, const CostTable& costs, std::size_t rank_class) {
  std::vector<double> by_block(plan.blocks.size(), -1);
  const auto price_of = [&](const plan::Instruction& i) -> std::int64_t {
    switch (i.op) {
      case plan::Opcode::kernel: return costs.kernel(rank_class, i.index).duration;
      case plan::Opcode::collective: return costs.collectives[rank_class][i.index].duration;
      case plan::Opcode::send:
      case plan::Opcode::recv: return costs.messages[rank_class][i.index].duration;
      case plan::Opcode::copy: return costs.copies[i.index].duration;
      case plan::Opcode::host_work: return costs.host_works[i.index];
      default: return 0;
    }
  };
  double sum = 0;
  for (const plan::Call& call : plan.classes[rank_class].program.step) {
    double& block = by_block[call.block];
    if (block < 0) {
      block = 0;
      for (const plan::Instruction& i : plan.blocks[call.block].timing) {
        const std::int64_t price = price_of(i);
        // A price below zero was beyond what 64 bits of picoseconds hold.
        block += price < 0 ? std::numeric_limits<double>::infinity() : static_cast<double>(price) * 1e-12;
        if (i.op <= plan::Opcode::host) block += static_cast<double>(i.value) * 1e-12;
      }
    }
    sum += block;
  }
  return sum;
}

}  // namespace rehearse::executor
