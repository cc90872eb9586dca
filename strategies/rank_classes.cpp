#include "strategies/rank_classes.h"

#include <algorithm>
#include <map>

#include "sim/core/contract.h"
#include "strategies/plan_writer.h"

namespace rehearse::strategies {
namespace {

constexpr Axis kMeetings[] = {Axis::tensor, Axis::context, Axis::context_ulysses, Axis::context_ring, Axis::data_shard_context, Axis::data_replicate, Axis::data_context,
                              Axis::pipeline, Axis::model, Axis::expert, Axis::expert_tensor, Axis::expert_data, Axis::embedding, Axis::mirror};

}  // namespace

RankClasses::RankClasses(const Layout& layout, Folding folding, bool by_expert) : layout_(layout), folded_(folding == Folding::folded), by_expert_(by_expert && folded_) {
  if (!by_expert_) return;
  std::vector<int> colours;
  for (Rank r = 0; r < layout.world_size(); ++r) colours.push_back(layout.coordinates_of(r).pipeline * layout.degrees().expert + layout.expert_coordinates_of(r).expert);
  number(colours);
  refine();
}

int RankClasses::count() const { return by_expert_ ? static_cast<int>(first_.size()) : folded_ ? layout_.degrees().pipeline : layout_.world_size(); }

Rank RankClasses::representative(int index) const {
  if (by_expert_) return first_[static_cast<std::size_t>(index)];
  Coordinates at;
  at.pipeline = index;
  return folded_ ? layout_.rank_of(at) : index;
}

/// Classes in the order of colours.
void RankClasses::number(const std::vector<int>& colours) {
  std::map<int, int> numbers;
  for (const int colour : colours) numbers.emplace(colour, 0);
  int next = 0;
  for (auto& [colour, n] : numbers) n = next++;
  EXPECTS(next <= UINT16_MAX, "more rank classes than a plan can name");
  of_rank_.assign(colours.size(), 0);
  first_.assign(numbers.size(), -1);
  ranks_.assign(numbers.size(), 0);
  for (std::size_t r = 0; r < colours.size(); ++r) {
    const auto c = static_cast<std::size_t>(numbers.at(colours[r]));
    of_rank_[r] = static_cast<std::uint16_t>(c);
    if (first_[c] < 0) first_[c] = static_cast<Rank>(r);
    ++ranks_[c];
  }
}

/// Splits classes whose members meet other classes, until none does: attention's groups and the experts' need not nest.
void RankClasses::refine() {
  for (int before = 0; before != count();) {
    before = count();
    // Per rank: its class, then for each axis the number of the set of classes that its group holds.
    std::vector<std::vector<int>> seen(of_rank_.size());
    for (std::size_t r = 0; r < seen.size(); ++r) seen[r] = {of_rank_[r]};
    for (const Axis axis : kMeetings) {
      std::map<std::vector<int>, int> sets;
      std::vector<int> mine(seen.size(), -1);
      for (std::size_t r = 0; r < seen.size(); ++r) {
        if (mine[r] >= 0) continue;
        const std::vector<Rank> members = layout_.group_of(axis, static_cast<Rank>(r));
        std::vector<int> classes;
        for (const Rank m : members) classes.push_back(of(m));
        std::sort(classes.begin(), classes.end());
        classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
        const int id = sets.emplace(std::move(classes), static_cast<int>(sets.size())).first->second;
        mine[r] = id;
        for (const Rank m : members) mine[static_cast<std::size_t>(m)] = id;
      }
      for (std::size_t r = 0; r < seen.size(); ++r) seen[r].push_back(mine[r]);
    }
    std::map<std::vector<int>, int> kinds;
    for (const auto& s : seen) kinds.emplace(s, 0);
    int next = 0;
    for (auto& [kind, n] : kinds) n = next++;
    std::vector<int> colours;
    for (const auto& s : seen) colours.push_back(kinds.at(s));
    number(colours);
  }
}

std::string RankClasses::name(int index) const {
  if (!folded_) return "rank " + std::to_string(index);
  const bool stages = layout_.degrees().pipeline > 1;
  if (!by_expert_) return stages ? "stage " + std::to_string(stage_of(index)) : "all ranks";
  std::string name = (stages ? "stage " + std::to_string(stage_of(index)) + ", " : std::string()) + "expert rank " + std::to_string(expert_rank_of(index));
  if (count() == layout_.degrees().pipeline * layout_.degrees().expert) return name;
  // Where groups do not nest, ranks with the same experts meet others: then the first of them is named.
  for (int other = 0; other < count(); ++other)
    if (other != index && stage_of(other) == stage_of(index) && expert_rank_of(other) == expert_rank_of(index)) return name + " as rank " + std::to_string(representative(index));
  return name;
}

int RankClasses::at_stage(int index, int stage) const {
  if (stage < 0 || (folded_ && !by_expert_)) return stage;
  Coordinates at = layout_.coordinates_of(representative(index));
  at.pipeline = stage;
  return of(layout_.rank_of(at));
}

std::vector<std::uint16_t> RankClasses::partners(int index, Axis axis) const {
  std::vector<std::uint16_t> out;
  std::vector<bool> met(static_cast<std::size_t>(count()));   // unfolded, a group has as many classes as ranks
  met[static_cast<std::size_t>(index)] = true;
  for (const Rank member : layout_.group_of(axis, representative(index))) {
    const auto other = static_cast<std::size_t>(of(member));
    if (!met[other]) out.push_back(static_cast<std::uint16_t>(other));
    met[other] = true;
  }
  return out;
}

}  // namespace rehearse::strategies
