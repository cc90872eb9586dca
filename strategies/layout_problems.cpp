#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "strategies/layout.h"
#include "strategies/layout_order.h"

namespace rehearse::strategies {
namespace {

struct Factor {
  const char* name;
  int value;
};

/// The divisors of `whole` next to `wanted`, below and above: what the user could write instead.
std::vector<int> nearest_divisors(int whole, int wanted) {
  int below = 0, above = 0;
  for (int d = 1; d <= whole; ++d) {
    if (whole % d != 0) continue;
    if (d < wanted) below = d;
    if (d > wanted && above == 0) above = d;
  }
  std::vector<int> out;
  if (below > 0) out.push_back(below);
  if (above > 0) out.push_back(above);
  return out;
}

/// "tensor 2 or 4, or pipeline 1": each factor changed alone so that the product divides `whole`.
std::string ways_to_divide(const std::vector<Factor>& factors, int whole) {
  std::vector<std::string> ways;
  for (const Factor& f : factors) {
    int others = 1;
    for (const Factor& o : factors)
      if (&o != &f) others *= o.value;
    if (f.value == 1 || whole % others != 0) continue;
    const auto values = nearest_divisors(whole / others, f.value);
    if (!values.empty()) ways.push_back(fmt::format("{} {}", f.name, fmt::join(values, " or ")));
  }
  return ways.empty() ? "smaller degrees" : fmt::format("{}", fmt::join(ways, ", or "));
}

/// The key of the one degree that is more than 1; where several are, they are wrong together.
std::string key_of_degrees(const std::vector<Factor>& factors) {
  std::string key = "parallelism";
  int split = 0;
  for (const Factor& f : factors)
    if (f.value > 1 && ++split == 1) key = fmt::format("parallelism.{}", f.name);
  return split == 1 ? key : "parallelism";
}

std::string product_of(const std::vector<Factor>& factors) {
  std::vector<std::string> words;
  for (const Factor& f : factors)
    if (f.value != 1 || factors.size() == 1) words.push_back(fmt::format("{} {}", f.name, f.value));
  return words.empty() ? "1" : fmt::format("{}", fmt::join(words, " x "));
}

Diagnostic problem(std::string key, std::string text, std::string fix) {
  return {.at = {}, .key = std::move(key), .problem = std::move(text), .fix = std::move(fix), .excerpt = {}};
}

void check_order(const Degrees& d, std::string_view order, std::vector<Diagnostic>& out) {
  const AxisOrder read = read_order(order);
  const std::string usual = fmt::format("Write the axes fastest first, as in {}.", kMegatronOrder);
  for (const std::string& word : read.unknown)
    out.push_back(problem("parallelism.order",
                          fmt::format("\"{}\" is no axis (tp, cp, ep, dp, dp_shard, dp_replicate, pp)", word),
                          usual));
  for (const std::string& word : read.repeated)
    out.push_back(problem("parallelism.order", fmt::format("{} stands there twice", word), usual));
  for (const std::string& axis : read.left_out) {
    const int degree = axis == "tp"         ? d.tensor
                       : axis == "cp"       ? d.context
                       : axis == "pp"       ? d.pipeline
                       : axis == "dp_shard" ? d.shard()
                                            : d.replicate();
    if (degree > 1)
      out.push_back(problem("parallelism.order",
                            fmt::format("{} is missing, but its degree is {}", axis, degree), usual));
  }
  // Attention and experts must agree on who is in which stage: the axes faster than pp must have equal
  // extents in both foldings (Megatron asserts that the order ends with pp, or that expert and dense data
  // degrees are equal).
  // Experts that nothing splits ask for it in rules.cpp, where it is known whether there are any.
  if (d.pipeline == 1 || (d.expert * d.expert_tensor == 1 && stages_are_between(d, order))) return;
  int dense = 1, folded = 1;
  for (const std::string& axis : read.axes) {
    if (axis == "pp") break;
    if (axis == "tp") dense *= d.tensor, folded *= d.expert_tensor;
    if (axis == "cp") dense *= d.context;
    if (axis == "ep") folded *= d.expert;
    if (axis == "dp_shard") dense *= d.shard(), folded *= d.expert_data() / d.replicate();
    if (axis == "dp_replicate") dense *= d.replicate(), folded *= d.replicate();
  }
  if (dense != folded)
    out.push_back(problem(
        "parallelism.order",
        fmt::format("stages of the experts and of attention would be different ranks ({} and {} ranks apart)",
                    folded, dense),
        "Put pp last, or make expert x expert_tensor equal to the dense degrees that come before pp."));
}

}  // namespace

bool stages_are_between(const Degrees& d, std::string_view order) {
  int before = 1;
  bool last = true;
  for (const std::string& axis : read_order(order).axes) {
    if (axis == "pp") last = false;
    else if (last) before *= axis == "tp" ? d.tensor : axis == "cp" ? d.context : axis == "dp_shard" ? d.shard() : axis == "dp_replicate" ? d.replicate() : 1;
    else if (axis.starts_with("dp")) return d.pipeline > 1 && before > 1;   // of unsplit experts all other ranks lie there
  }
  return d.pipeline > 1 && before > 1 && before < d.tensor * d.context * d.data;
}

std::vector<Diagnostic> problems_of(const Degrees& d, int world_size, std::string_view order, int gpus_per_node) {
  std::vector<Diagnostic> out;
  const std::array<Factor, 6> all{{{"tensor", d.tensor},
                                   {"context", d.context},
                                   {"data", d.data},
                                   {"pipeline", d.pipeline},
                                   {"expert", d.expert},
                                   {"expert_tensor", d.expert_tensor}}};
  for (const Factor& f : all)
    if (f.value < 1)
      out.push_back(problem(fmt::format("parallelism.{}", f.name), fmt::format("{} is not a degree", f.value),
                            "Use 1 or more."));
  if (d.data_shard < 0)
    out.push_back(problem("parallelism.data_shard", fmt::format("{} is not a degree", d.data_shard),
                          "Use 1 or more, or leave it out."));
  if (d.context_ulysses < 1 || d.context % std::max(1, d.context_ulysses) != 0)
    out.push_back(problem("parallelism.context_ulysses",
                          fmt::format("{} does not divide the context-parallel degree {}", d.context_ulysses, d.context),
                          fmt::format("Use {}.", ways_to_divide({{"context_ulysses", d.context_ulysses}}, d.context))));
  if (!out.empty()) return out;

  const std::vector<Factor> model{{"tensor", d.tensor}, {"context", d.context}, {"pipeline", d.pipeline}};
  const int per_replica = d.tensor * d.context * d.pipeline;
  if (per_replica > world_size) {
    const Factor& largest = *std::max_element(model.begin(), model.end(), [](const Factor& a, const Factor& b) { return a.value < b.value; });
    const std::string nodes = gpus_per_node > 0 ? fmt::format(" on {0} nodes of {1} (cluster.nodes: {0}; import: --nodes {0})", (per_replica + gpus_per_node - 1) / gpus_per_node, gpus_per_node) : "";
    out.push_back(problem(fmt::format("parallelism.{}", largest.name),
                          fmt::format("{} does not divide {} GPUs: one replica takes {}", product_of(model), world_size, per_replica),
                          fmt::format("Use {} GPUs{}, or {}.", per_replica, nodes, ways_to_divide(model, world_size))));
  } else if (world_size % per_replica != 0) {
    out.push_back(problem(key_of_degrees(model),
                          fmt::format("{} does not divide {} GPUs", product_of(model), world_size),
                          fmt::format("Use {}.", ways_to_divide(model, world_size))));
  } else if (d.data != world_size / per_replica) {
    const std::string rest = product_of(model);
    out.push_back(problem(
        "parallelism.data",
        fmt::format("{} x data {} are {} GPUs, not {}", rest, d.data, per_replica * d.data, world_size),
        fmt::format("Use data {}, or auto.", world_size / per_replica)));
  }
  if (d.data % d.shard() != 0)
    out.push_back(problem("parallelism.data_shard",
                          fmt::format("{} does not divide data {}", d.shard(), d.data),
                          fmt::format("Use {}.", fmt::join(nearest_divisors(d.data, d.shard()), " or "))));

  const int stage_ranks = d.tensor * d.context * d.data;
  if (d.expert > 1 || d.expert_tensor > 1) {
    const std::vector<Factor> experts{{"expert", d.expert}, {"expert_tensor", d.expert_tensor}};
    if (stage_ranks % (d.expert * d.expert_tensor) != 0)
      out.push_back(
          problem(stage_ranks % d.expert == 0 ? "parallelism.expert_tensor" : "parallelism.expert",
                  fmt::format("{} does not divide the {} ranks of a stage (tensor {} x context {} x data {})",
                              product_of(experts), stage_ranks, d.tensor, d.context, d.data),
                  fmt::format("Use {}.", ways_to_divide(experts, stage_ranks))));
    else if (d.data % d.shard() == 0 && d.expert_data() % d.replicate() != 0)
      out.push_back(
          problem("parallelism.expert",
                  fmt::format("{} replicas cannot each hold all experts: {} fits only {} times into a stage",
                              d.replicate(), product_of(experts), d.expert_data()),
                  fmt::format("Use {}.", ways_to_divide(experts, stage_ranks / d.replicate()))));
  }
  if (out.empty()) check_order(d, order, out);
  return out;
}

std::optional<int> data_degree_to_fill(const Degrees& d, int world_size) {
  const int per_replica = d.tensor * d.context * d.pipeline;
  if (per_replica < 1 || world_size % per_replica != 0) return std::nullopt;
  return world_size / per_replica;
}

}  // namespace rehearse::strategies
