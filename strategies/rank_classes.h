// Which ranks of a job are equal. Leaves out their programs (plan_writer.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strategies/layout.h"

namespace rehearse::strategies {

enum class Folding : std::uint8_t;

/// A partition of the ranks such that those of one class have the same stage, the same experts (where these differ in load),
/// and meet the same classes in each of their groups. Class numbers grow with stage, then expert rank.
class RankClasses {
 public:
  /// `by_expert`: expert-parallel ranks differ. Unfolded, every rank is a class.
  RankClasses(const Layout& layout, Folding folding, bool by_expert);

  int count() const;
  /// The smallest rank of a class, which stands for all.
  Rank representative(int index) const;
  int ranks(int index) const { return by_expert_ ? ranks_[static_cast<std::size_t>(index)] : layout_.world_size() / count(); }
  int of(Rank rank) const { return by_expert_ ? of_rank_[static_cast<std::size_t>(rank)] : folded_ ? layout_.stage_of(rank) : rank; }
  /// Empty where the number of a class is that of a stage or a rank.
  const std::vector<std::uint16_t>& of_rank() const { return of_rank_; }
  std::string name(int index) const;

  int stage_of(int index) const { return layout_.stage_of(representative(index)); }
  int expert_rank_of(int index) const { return layout_.expert_coordinates_of(representative(index)).expert; }
  /// The class of the same rank's neighbour at another stage; -1 stays -1.
  int at_stage(int index, int stage) const;
  /// Other classes that meet this one in the groups of an axis.
  std::vector<std::uint16_t> partners(int index, Axis axis) const;

 private:
  void refine();
  void number(const std::vector<int>& colours);

  const Layout& layout_;
  bool folded_, by_expert_;
  std::vector<std::uint16_t> of_rank_;   // these three by expert only
  std::vector<Rank> first_;
  std::vector<int> ranks_;
};

}  // namespace rehearse::strategies
