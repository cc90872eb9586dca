#include "sim/advice/capacity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>

#include "hwmodels/topology/cluster.h"
#include "sim/core/parallel.h"
#include "strategies/rules.h"

namespace rehearse::advice {
namespace {

namespace st = strategies;

constexpr const char* kOutOfMemory = "out of memory";

/// One way to lay the job on the machines of an offer.
struct Arrangement {
  Change change;
  std::optional<double> shortest;   // seconds of a step, at least; none: refused
  std::string reason;               // why it is not the best
};

/// Those of one offer, and the fastest found so far. Threads work on it together.
struct Search {
  Case job;
  std::vector<Arrangement> all;
  std::vector<std::size_t> order = {};   // into `all`, by `shortest`
  std::mutex guard = {};
  std::optional<std::size_t> best = {};
  double step = 0;                       // of the best

  Search(Case on, std::vector<Change> changes) : job(std::move(on)) {
    for (Change& change : changes) all.push_back({std::move(change), {}, {}});
  }

  void bound(std::size_t i) { all[i].shortest = job.shortest_step(all[i].change.settings, &all[i].reason); }

  void sort() {
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i].shortest) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return *all[a].shortest < *all[b].shortest; });
  }

  /// Can it still be the fastest?
  bool may_win(std::size_t i) {
    constexpr double kRounding = 1e-6;   // of the simulated step
    const std::lock_guard lock(guard);
    return !best || *all[i].shortest * (1 - kRounding) <= step;
  }

  /// Memory is sooner known than time.
  void settle(std::size_t i) {
    Arrangement& a = all[i];
    if (!may_win(i)) return;
    const std::optional<bool> fits = job.fits(a.change.settings, &a.reason);
    if (fits && !*fits) a.reason = kOutOfMemory;
    if (!fits.value_or(false) || !may_win(i)) return;
    const std::optional<double> time = job.step_time(a.change.settings, &a.reason);
    if (!time) return;
    const std::lock_guard lock(guard);
    if (best && (*time > step || (*time == step && i > *best))) return;
    best = i;
    step = *time;
  }

  /// Of those that cannot be: memory, if it is that anywhere.
  std::string reason() const {
    std::string first;
    for (const Arrangement& a : all) {
      if (a.reason == kOutOfMemory) return a.reason;
      if (first.empty()) first = a.reason;
    }
    return first;
  }
};

/// Settings that lay the job on these machines. What the scenario says of its own machines (another GPU, fewer of them, a locked
/// clock, a power limit, measured efficiencies) holds for that node design; any other is taken as it is sold.
std::vector<std::string> settings_for(const Machines& m, const Case& job, const hwmodels::ClusterDescription& own, const hwmodels::ClusterDescription& sold) {
  std::vector<std::string> out{fmt::format("cluster.node={}", m.node), fmt::format("cluster.nodes={}", m.nodes), "parallelism.data=auto"};
  if (sold.node.file == own.node.file) return out;
  if (job.says("cluster", "gpu")) out.push_back(fmt::format("cluster.gpu={}", sold.node.gpu));
  if (own.gpus_per_node != sold.gpus_per_node) out.push_back(fmt::format("cluster.gpus_per_node={}", sold.gpus_per_node));
  if (own.gpu.locked_clock_mhz > 0) out.push_back(fmt::format("cluster.gpu_clock={:g} MHz", sold.gpu.highest_clock_mhz()));
  if (own.gpu.limit_watts != own.node.gpu_power) out.push_back(fmt::format("cluster.gpu_power={:g} W", sold.gpu.limit_watts > 0 ? sold.gpu.limit_watts : sold.gpu.own_watts));
  if (own.nic_efficiency && sold.node.nic.count > 0) out.push_back(fmt::format("cluster.nic_efficiency={}", sold.node.nic.efficiency));
  if (own.collectives) out.emplace_back("cluster.collectives=nccl");
  return out;
}

/// The scenario's own arrangement, where these GPUs can have it: its schedule, stages and recomputation may be none of ours.
std::optional<Change> as_it_is(const scenario::Scenario& s, int gpus) {
  const st::Degrees& d = s.strategy.parallelism.degrees;
  const std::int64_t parts = std::int64_t{d.tensor} * d.pipeline * d.context, data = gpus / parts, micro = s.strategy.training.micro_batch_size;
  if (gpus % parts != 0 || data == 0 || s.strategy.training.global_batch_size % (data * micro) != 0) return std::nullopt;
  return Change{fmt::format("TP {} PP {}{} DP {} MB {} own", d.tensor, d.pipeline, s.strategy.pipeline.virtual_stages > 1 ? fmt::format("x{}", s.strategy.pipeline.virtual_stages) : "", data, micro), {}, false};
}

/// Do so many chunks of equally many layers leave few places empty?
bool nearly_divides(std::int64_t chunks, std::int64_t layers) {
  const std::int64_t places = (layers + chunks - 1) / chunks * chunks;
  return chunks <= layers && 10 * (places - layers) <= places;
}

/// How many data-parallel ranks share the parameters: all of them (0), or those of eight nodes, which have replicas.
std::vector<int> shares(const scenario::Scenario& s, std::int64_t data, int ranks_of_a_node) {
  const int some = 8 * ranks_of_a_node;
  const bool hybrid = st::shards_parameters(s.strategy.data_parallel.kind) && s.strategy.parallelism.degrees.data_shard == 0 && some > 1 && some < data && data % some == 0;
  return hybrid ? std::vector<int>{0, some} : std::vector<int>{0};
}

bool better(const Offer& a, const Offer& b) {
  const double a_cost = a.cost.value_or(a.gpu_hours), b_cost = b.cost.value_or(b.gpu_hours);
  return a.seconds <= b.seconds && a_cost <= b_cost && (a.seconds < b.seconds || a_cost < b_cost);
}

}  // namespace

std::vector<Change> arrangements(const scenario::Scenario& scenario, int gpus, int per_node, int linked) {
  const st::Degrees& d = scenario.strategy.parallelism.degrees;
  const std::int64_t layers = scenario.model.layer_count(), global = scenario.strategy.training.global_batch_size;
  std::vector<Change> out;
  for (int tensor = 1; tensor <= std::max(per_node, linked); tensor *= 2)
    for (int pipeline = 1; pipeline <= std::min<std::int64_t>(layers, 64); pipeline *= 2) {
      const int parts = tensor * pipeline * d.context;
      if (parts > gpus || gpus % parts != 0 || !nearly_divides(pipeline, layers)) continue;
      const std::int64_t data = gpus / parts;
      for (int chunks = 1; chunks <= (pipeline > 2 ? 4 : 1); chunks *= 2) {
        if (!nearly_divides(static_cast<std::int64_t>(pipeline) * chunks, layers)) break;
        for (std::int64_t micro = 1; micro <= 8 && global % (micro * data) == 0; micro *= 2) {
          std::vector<std::string> settings{fmt::format("parallelism.tensor={}", tensor), fmt::format("parallelism.pipeline={}", pipeline),
                                            fmt::format("parallelism.sequence_parallel={}", tensor > 1), fmt::format("training.micro_batch_size={}", micro),
                                            fmt::format("pipeline.virtual_stages={}", chunks), fmt::format("pipeline.schedule={}", chunks > 1 ? "interleaved-1f1b" : "1f1b")};
          for (const int shard : shares(scenario, data, per_node / (tensor * d.context)))
            for (const char* recompute : {"none", "selective", "full"}) {
              Change change{fmt::format("TP {} PP {}{} DP {}{} MB {}", tensor, pipeline, chunks > 1 ? fmt::format("x{}", chunks) : "", data, shard > 0 ? fmt::format("/{}", shard) : "", micro), settings, false};
              if (std::string(recompute) != "none") change.name += std::string(" ") + recompute;
              if (shard > 0) change.settings.push_back(fmt::format("parallelism.data_shard={}", shard));
              change.settings.push_back(std::string("memory.recompute=") + recompute);
              out.push_back(std::move(change));
            }
        }
      }
    }
  return out;
}

std::vector<Offer> plan_capacity(const Case& job, const std::vector<Machines>& machines, const Goal& goal, int threads, const std::function<void(int)>& progress) {
  const scenario::Scenario as_written = job.read();
  std::vector<Offer> offers;
  std::vector<std::unique_ptr<Search>> searches;
  std::vector<std::pair<std::size_t, std::size_t>> work;   // offer, arrangement
  for (const Machines& m : machines) {
    Offer offer{.machines = m};
    const hwmodels::ClusterDescription sold = hwmodels::load_cluster(m.node, m.nodes);
    const hwmodels::ClusterDescription& there = sold.node.file == as_written.cluster.node.file ? as_written.cluster : sold;
    offer.settings = settings_for(m, job, as_written.cluster, sold);
    offer.gpus = there.gpus_per_node * m.nodes;
    offer.architecture = name_of(there.gpu.architecture);
    hwmodels::ClusterDescription so_many = there;
    so_many.nodes = m.nodes;
    std::vector<Change> changes = arrangements(as_written, offer.gpus, there.gpus_per_node, so_many.linked_gpus());
    if (std::optional<Change> own = as_it_is(as_written, offer.gpus)) changes.push_back(std::move(*own));
    if (changes.empty()) offer.reason = fmt::format("no arrangement of {} GPUs divides the global batch of {}", offer.gpus, as_written.strategy.training.global_batch_size);
    offer.tried = static_cast<int>(changes.size());
    for (std::size_t i = 0; i < changes.size(); ++i) work.emplace_back(offers.size(), i);
    searches.push_back(std::make_unique<Search>(job.with({m.node, offer.settings, false}), std::move(changes)));
    offers.push_back(std::move(offer));
  }

  int done = 0;
  std::mutex telling;
  const auto tell = [&] {
    if (!progress) return;
    const std::lock_guard lock(telling);
    progress(++done);
  };
  for_each_index(work.size(), threads, [&](std::size_t i) {
    searches[work[i].first]->bound(work[i].second);
    tell();
  });
  // The most promising ones of every offer first: what they come to rules out the others.
  work.clear();
  for (const auto& search : searches) search->sort();
  for (std::size_t i = 0, before = SIZE_MAX; before != work.size(); ++i) {
    before = work.size();
    for (std::size_t o = 0; o < searches.size(); ++o)
      if (i < searches[o]->order.size()) work.emplace_back(o, searches[o]->order[i]);
  }
  for_each_index(work.size(), threads, [&](std::size_t i) { searches[work[i].first]->settle(work[i].second); });

  for (std::size_t o = 0; o < offers.size(); ++o) {
    Offer& offer = offers[o];
    const Search& search = *searches[o];
    if (!search.best) {
      if (offer.reason.empty()) offer.reason = search.reason();
      continue;
    }
    const Change& change = search.all[*search.best].change;
    offer.best = Trial{change, *search.job.ask(change.settings)};
    offer.seconds = goal.tokens / offer.best->answer.tokens_per_second;
    offer.gpu_hours = offer.seconds / 3600 * offer.gpus;
    if (const auto price = goal.gpu_hour.find(offer.machines.node); price != goal.gpu_hour.end()) offer.cost = offer.gpu_hours * price->second;
    offer.meets = (!goal.within || offer.seconds <= *goal.within) && (!goal.budget || (offer.cost && *offer.cost <= *goal.budget));
  }
  for (Offer& offer : offers)
    offer.worth = offer.best && std::none_of(offers.begin(), offers.end(), [&](const Offer& other) { return other.best && other.cost.has_value() == offer.cost.has_value() && better(other, offer); });
  return offers;
}

const Offer* chosen(const std::vector<Offer>& offers) {
  const bool priced = std::all_of(offers.begin(), offers.end(), [](const Offer& o) { return !o.meets || o.cost.has_value(); });
  const auto key = [&](const Offer& o) { return std::pair{priced ? *o.cost : o.gpu_hours, o.seconds}; };
  const Offer* best = nullptr;
  for (const Offer& o : offers)
    if (o.meets && (best == nullptr || key(o) < key(*best))) best = &o;
  return best;
}

}  // namespace rehearse::advice
