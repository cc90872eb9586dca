#include "sim/advice/capacity.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "hwmodels/topology/cluster.h"
#include "sim/core/parallel.h"

namespace rehearse::advice {
namespace {

namespace st = strategies;

/// What an arrangement of one shape came to, from the least recomputation up: more is slower, so the first that fits is it.
struct Shape {
  std::vector<Change> by_recomputation;
  std::optional<Trial> fits;
  std::string reason;
  int tried = 0;
};

void settle(const Case& job, Shape& shape) {
  for (const Change& change : shape.by_recomputation) {
    std::string why;
    const std::optional<bool> fits = job.fits(change.settings, &why);   // memory is sooner known than time
    ++shape.tried;
    shape.reason = fits ? "out of memory" : why;
    if (!fits.value_or(false)) continue;
    if (const std::optional<Answer> answer = job.ask(change.settings, &why); answer && answer->fits) {
      shape.fits = Trial{change, *answer};
      return;
    }
  }
}

Case on(const Case& job, const Machines& m) {
  return job.with({m.node, {fmt::format("cluster.node={}", m.node), fmt::format("cluster.nodes={}", m.nodes), "parallelism.data=auto"}, false});
}

/// The scenario's own arrangement, where these GPUs can have it: its schedule, stages and recomputation may be none of ours.
std::optional<Shape> as_it_is(const scenario::Scenario& s, int gpus) {
  const st::Degrees& d = s.strategy.parallelism.degrees;
  const std::int64_t parts = std::int64_t{d.tensor} * d.pipeline * d.context, data = gpus / parts, micro = s.strategy.training.micro_batch_size;
  if (gpus % parts != 0 || data == 0 || s.strategy.training.global_batch_size % (data * micro) != 0) return std::nullopt;
  Shape shape;
  shape.by_recomputation.push_back({fmt::format("TP {} PP {}{} DP {} MB {} own", d.tensor, d.pipeline, s.strategy.pipeline.virtual_stages > 1 ? fmt::format("x{}", s.strategy.pipeline.virtual_stages) : "", data, micro), {}, false});
  return shape;
}

/// Do so many chunks of equally many layers leave few places empty?
bool nearly_divides(std::int64_t chunks, std::int64_t layers) {
  const std::int64_t places = (layers + chunks - 1) / chunks * chunks;
  return chunks <= layers && 10 * (places - layers) <= places;
}

/// Arrangements that differ in recomputation only lie side by side.
std::vector<Shape> shapes_of(const std::vector<Change>& changes) {
  constexpr std::size_t kLevels = 3;
  std::vector<Shape> out(changes.size() / kLevels);
  for (std::size_t i = 0; i < changes.size(); ++i) out[i / kLevels].by_recomputation.push_back(changes[i]);
  return out;
}

bool better(const Offer& a, const Offer& b) {
  const double a_cost = a.cost.value_or(a.gpu_hours), b_cost = b.cost.value_or(b.gpu_hours);
  return a.seconds <= b.seconds && a_cost <= b_cost && (a.seconds < b.seconds || a_cost < b_cost);
}

}  // namespace

std::vector<Change> arrangements(const scenario::Scenario& scenario, int gpus, int per_node) {
  const st::Degrees& d = scenario.strategy.parallelism.degrees;
  const std::int64_t layers = scenario.model.layer_count(), global = scenario.strategy.training.global_batch_size;
  std::vector<Change> out;
  for (int tensor = 1; tensor <= per_node; tensor *= 2)
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
          std::string name = fmt::format("TP {} PP {}{} DP {} MB {}", tensor, pipeline, chunks > 1 ? fmt::format("x{}", chunks) : "", data, micro);
          for (const char* recompute : {"none", "selective", "full"}) {
            out.push_back({name + (std::string(recompute) == "none" ? "" : std::string(" ") + recompute), settings, false});
            out.back().settings.push_back(std::string("memory.recompute=") + recompute);
          }
        }
      }
    }
  return out;
}

std::vector<Offer> plan_capacity(const Case& job, const std::vector<Machines>& machines, const Goal& goal, int threads, const std::function<void(int)>& progress) {
  struct Place {
    Case job;
    std::vector<Shape> shapes;
  };
  const scenario::Scenario as_written = job.read();
  std::vector<Offer> offers;
  std::vector<Place> places;
  std::vector<std::pair<std::size_t, std::size_t>> work;
  for (const Machines& m : machines) {
    Offer offer{.machines = m};
    Place place{on(job, m), {}};
    const hwmodels::ClusterDescription cluster = hwmodels::load_cluster(m.node, m.nodes, "rail-fat-tree");
    offer.gpus = cluster.gpus_per_node * m.nodes;
    place.shapes = shapes_of(arrangements(as_written, offer.gpus, cluster.gpus_per_node));
    if (std::optional<Shape> own = as_it_is(as_written, offer.gpus)) place.shapes.push_back(std::move(*own));
    if (place.shapes.empty()) offer.reason = fmt::format("no arrangement of {} GPUs divides the global batch of {}", offer.gpus, as_written.strategy.training.global_batch_size);
    for (std::size_t i = 0; i < place.shapes.size(); ++i) work.emplace_back(places.size(), i);
    offers.push_back(std::move(offer));
    places.push_back(std::move(place));
  }

  std::atomic<int> asked{0};
  std::mutex telling;
  for_each_index(work.size(), threads, [&](std::size_t i) {
    Place& place = places[work[i].first];
    Shape& shape = place.shapes[work[i].second];
    settle(place.job, shape);
    const int now = asked += shape.tried;
    if (progress) {
      const std::lock_guard lock(telling);
      progress(now);
    }
  });

  for (std::size_t o = 0; o < offers.size(); ++o) {
    Offer& offer = offers[o];
    for (const Shape& shape : places[o].shapes) {
      offer.tried += shape.tried;
      if (!shape.fits) {
        if (offer.reason.empty() || shape.reason == "out of memory") offer.reason = shape.reason;
        continue;
      }
      ++offer.fitting;
      if (!offer.best || shape.fits->answer.tokens_per_second > offer.best->answer.tokens_per_second) offer.best = shape.fits;
    }
    if (!offer.best) continue;
    offer.reason.clear();
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
