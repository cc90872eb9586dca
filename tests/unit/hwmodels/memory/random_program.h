// A reproducible stream of allocator calls for comparisons: sizes at every edge, four streams, waves of
// growth and shrinking. Leaves out who carries them out and what must agree.
#pragma once

#include <cstdint>
#include <optional>

#include "hwmodels/memory/allocator_types.h"
#include "sim/core/random.h"

namespace rehearse::hwmodels::test {

inline std::int64_t below(Random& r, std::int64_t n) {
  return static_cast<std::int64_t>(r.below(static_cast<std::uint64_t>(n)));
}

// Half of the requests repeat a few sizes, as training does; the rest spreads over all classes with their
// edges.
inline std::int64_t random_size(Random& r) {
  static constexpr std::int64_t kMi = 1 << 20;
  static constexpr std::int64_t kUsual[] = {512,     4096,    65536,    3 * kMi / 2,
                                            4 * kMi, 9 * kMi, 16 * kMi, 33 * kMi};
  static constexpr std::int64_t kEdges[] = {
      1, 511, 513, kMi - 511, kMi, kMi + 1, 10 * kMi - 512, 10 * kMi, 20 * kMi, 21 * kMi};
  switch (below(r, 8)) {
    case 0:
    case 1:
    case 2:
    case 3:
      return kUsual[below(r, 8)];
    case 4:
      return kEdges[below(r, 10)];
    case 5:
      return 1 + below(r, kMi);
    case 6:
      return 1 + below(r, 10 * kMi);
    default:
      return 1 + below(r, 60 * kMi);
  }
}

struct RandomOperation {
  enum class Kind {
    allocate,
    free,
    record_stream,
    complete_events,
    empty_cache,
    reset_peak,
    set_limit,
    nothing
  };
  Kind kind = Kind::nothing;
  Bytes bytes{};      // allocate, set_limit
  StreamId stream{};  // allocate, record_stream, complete_events
  std::size_t which =
      0;  // free, record_stream: position among the live blocks; the last one takes a freed one's place
  EventToken token{};  // complete_events
};

class RandomProgram {
 public:
  explicit RandomProgram(Bytes limit, bool moves_limit) : limit_(limit), moves_limit_(moves_limit) {}

  RandomOperation next(std::size_t live) {
    using Kind = RandomOperation::Kind;
    // Waves: the number of live blocks drifts up and down, so that segments both fill and empty.
    const bool grow = (count_++ / 2000) % 2 == 0;
    const std::int64_t dice = below(random_, 100);
    const auto stream = [this] { return StreamId{static_cast<std::uint8_t>(below(random_, 4))}; };
    const auto which = [this, live] {
      return static_cast<std::size_t>(below(random_, static_cast<std::int64_t>(live)));
    };
    if (dice < (grow ? 58 : 36) || live == 0) {
      const Bytes bytes{random_size(random_)};
      return {
          .kind = Kind::allocate, .bytes = bytes, .stream = below(random_, 10) < 7 ? StreamId{0} : stream()};
    }
    if (dice < 94) return {.kind = Kind::free, .which = which()};
    if (dice < 97) {
      const std::size_t block = which();
      return {.kind = Kind::record_stream, .stream = stream(), .which = block};
    }
    if (dice < 99) {
      const StreamId s = stream();
      const auto back = static_cast<std::uint64_t>(below(random_, 5));
      return {
          .kind = Kind::complete_events, .stream = s, .token = {last_.value - std::min(last_.value, back)}};
    }
    const std::int64_t what = below(random_, 200);
    if (what == 0) return {.kind = Kind::empty_cache};
    if (what == 1) return {.kind = Kind::reset_peak};
    if (what < 20 && moves_limit_)
      return {.kind = Kind::set_limit, .bytes = limit_ - Bytes{below(random_, 100) << 20}};
    return {};
  }
  void freed(std::optional<EventToken> token) {
    if (token) last_ = *token;
  }

 private:
  Random random_{42};
  Bytes limit_;
  bool moves_limit_;
  int count_ = 0;
  EventToken last_;
};

}  // namespace rehearse::hwmodels::test
