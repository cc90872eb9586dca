#include "sim/executor/repeats.h"

namespace rehearse::executor {
namespace {

using plan::Call;
using plan::Frame;

constexpr std::size_t kUnit = static_cast<std::size_t>(Frame::unit);

/// What a call does, names aside. Compared as a whole: nothing is hashed away.
struct Shape {
  std::uint32_t block = 0;
  std::array<std::uint32_t, 4> frames{};   // a fixed frame's name, or how long ago and where it was used last, or fresh
  friend bool operator==(const Shape&, const Shape&) = default;
};
constexpr std::uint32_t kFresh = plan::kNoFrame - 1, kTenant = 0x80000000;

/// The smallest period of a range that repeats at least once in it, 0 if none (Knuth, Morris and Pratt's failure function).
std::size_t period_of(const std::vector<Shape>& all, std::size_t from, std::size_t to) {
  const std::size_t n = to - from;
  std::vector<std::uint32_t> border(n, 0);
  for (std::size_t i = 1; i < n; ++i) {
    std::uint32_t k = border[i - 1];
    while (k > 0 && !(all[from + i] == all[from + k])) k = border[k - 1];
    border[i] = all[from + i] == all[from + k] ? k + 1 : 0;
  }
  const std::size_t period = n == 0 ? 0 : n - border[n - 1];
  return 2 * period <= n ? period : 0;
}

}  // namespace

Repeats::Repeats(const plan::Program& program) : fixed_(program.slots + 1), fresh_(program.step.size()) {
  const std::vector<Call>& calls = program.step;
  for (const Call& c : calls)
    for (std::size_t p = 0; p < c.frames.size(); ++p)
      if (c.frames[p] != plan::kNoFrame && (p == kUnit || c.micro_batch < 0)) fixed_[c.frames[p]] = true;
  for (const Call& c : program.setup)
    for (const std::uint32_t frame : c.frames)
      if (frame != plan::kNoFrame) fixed_[frame] = true;

  std::vector<FrameUse> last(program.slots + 1);
  std::vector<Shape> shapes(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Call& c = calls[i];
    shapes[i].block = c.block;
    for (std::size_t p = 0; p < c.frames.size(); ++p) {
      const std::uint32_t frame = c.frames[p];
      shapes[i].frames[p] = frame;
      if (frame == plan::kNoFrame || fixed_[frame]) continue;
      const FrameUse use = last[frame];
      const bool same_tenant = use.call != UINT32_MAX && calls[use.call].micro_batch == c.micro_batch;
      shapes[i].frames[p] = same_tenant ? kTenant | static_cast<std::uint32_t>(i - use.call) << 2 | use.place : kFresh;
      if (!same_tenant) fresh_[i] |= static_cast<std::uint8_t>(1u << p);
    }
    for (std::size_t p = c.frames.size(); p-- > 0;)
      if (c.frames[p] != plan::kNoFrame) last[c.frames[p]] = {static_cast<std::uint32_t>(i), static_cast<std::uint8_t>(p)};
  }

  // Ramps at both ends differ; what repeats lies around the middle.
  const std::size_t n = calls.size();
  for (const auto& [from, to] : {std::pair{n / 4, n - n / 4}, std::pair{2 * n / 5, n - 2 * n / 5}}) {
    const std::size_t period = period_of(shapes, from, to);
    if (period == 0) continue;
    std::size_t first = from + period, end = to;
    while (first > period && shapes[first - 1] == shapes[first - 1 - period]) --first;
    while (end < n && shapes[end] == shapes[end - period]) ++end;
    if (end - first < 2 * period) continue;
    stretch_ = {first, end, period};
    return;
  }
}

}  // namespace rehearse::executor
