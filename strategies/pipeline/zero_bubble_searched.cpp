// ZB-1p and ZB-2p: the order is searched for, with the times that the passes of this job take and a limit on activations:
// those of p micro-batches (as 1F1B) or of 2p. Source: arXiv 2401.10241, section 3.1 (the heuristic; the authors' code
// searches its switches exhaustively, as here) and section 5 (limits).
#include <algorithm>
#include <limits>
#include <optional>

#include "strategies/pipeline/emit.h"
#include "strategies/pipeline/messages.h"

namespace rehearse::strategies {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// 1 where the job's own times are not known.
double pass_time(const PassTimes& times, std::size_t rank, ActionKind kind) {
  const auto& all = kind == ActionKind::forward ? times.forward : kind == ActionKind::backward_input ? times.input_gradient : times.weight_gradient;
  return all.empty() ? 1 : all[rank];
}

/// The switches of the heuristic.
struct Choices {
  bool late_forward;     // in warm-up a forward may start although it delays the first backward
  bool skip_forward;     // a stage that is two forwards ahead of the next one prefers a backward
  bool fill_small_gaps;  // a weight gradient may start in a gap that it overruns, where this stage waits longest
};

class Search {
 public:
  Search(const PipelineShape& shape, double limit, Choices choices) : shape_(shape), limit_(limit), choices_(choices), stages_(static_cast<std::size_t>(shape.stages)) {
    for (Stage& s : stages_) s.forward_end.assign(static_cast<std::size_t>(shape.micro_batches), kNever), s.input_end = s.forward_end;
  }

  /// False when the memory limit leaves no way to the end.
  bool run() {
    for (int i = 0; i < p(); ++i) decide(i);
    for (;;) {
      int best = -1;
      for (int i = 0; i < p(); ++i)
        if (stage(i).next && (best < 0 || stage(i).at < stage(best).at)) best = i;
      if (best < 0) break;
      carry_out(best);
      for (int i = std::max(0, best - 1); i <= std::min(p() - 1, best + 1); ++i) decide(i);
    }
    return std::all_of(stages_.begin(), stages_.end(), [&](const Stage& s) { return s.weights == m(); });
  }
  std::vector<std::vector<Action>> take_orders() {
    std::vector<std::vector<Action>> out;
    for (Stage& s : stages_) out.push_back(std::move(s.order));
    return out;
  }

 private:
  struct Stage {
    double now = 0, idle = 0, memory = 0;
    int forwards = 0, inputs = 0, weights = 0;
    bool forward_was_last = false;
    std::optional<ActionKind> next;
    double at = 0;
    std::vector<double> forward_end, input_end;
    std::vector<Action> order;
  };
  int p() const { return shape_.stages; }
  int m() const { return shape_.micro_batches; }
  Stage& stage(int i) { return stages_[static_cast<std::size_t>(i)]; }
  double duration(int i, ActionKind kind) const { return pass_time(shape_.times, static_cast<std::size_t>(i), kind); }

  double forward_ready(int i) {
    const int f = stage(i).forwards;
    if (f == m()) return kNever;
    return i == 0 ? 0 : stage(i - 1).forward_end[static_cast<std::size_t>(f)] + shape_.times.message;
  }
  double input_ready(int i) {
    const int b = stage(i).inputs;
    if (b == stage(i).forwards) return kNever;
    return i + 1 == p() ? stage(i).forward_end[static_cast<std::size_t>(b)] : stage(i + 1).input_end[static_cast<std::size_t>(b)] + shape_.times.message;
  }

  void choose(Stage& s, ActionKind kind, double at) {
    s.next = kind;
    s.at = at;
  }

  void decide(int i) {
    Stage& s = stage(i);
    s.next.reset();
    const bool pending = s.weights < s.inputs, fits = s.memory + 1 <= limit_ + 1e-9;
    const double arrived = forward_ready(i), forward = fits ? std::max(s.now, arrived) : kNever, input = std::max(s.now, input_ready(i));
    const double soonest = std::min(forward, input);
    if (soonest == kNever) {
      // Nothing can come before a message; until it does, weight gradients may.
      if (pending) choose(s, ActionKind::backward_weight, s.now);
      return;
    }
    const double gap = soonest - s.now, weight = duration(i, ActionKind::backward_weight);
    if (pending && gap > 0) {
      const bool blocked = !fits && arrived <= s.now;
      double worst = 0;
      for (const Stage& other : stages_) worst = std::max(worst, other.idle);
      if (gap >= weight || blocked || (choices_.fill_small_gaps && s.idle + gap > worst)) return choose(s, ActionKind::backward_weight, s.now);
    }
    bool prefer_forward = forward < input;
    if (forward <= s.now && input <= s.now) prefer_forward = !s.forward_was_last;
    if (s.inputs == 0 && !choices_.late_forward && forward + duration(i, ActionKind::forward) > input) prefer_forward = false;
    if (choices_.skip_forward && i + 1 < p() && input <= s.now && s.forwards > stage(i + 1).forwards + 1 && s.inputs > 0) prefer_forward = false;
    if (prefer_forward ? forward == kNever : input == kNever) prefer_forward = !prefer_forward;
    choose(s, prefer_forward ? ActionKind::forward : ActionKind::backward_input, prefer_forward ? forward : input);
  }

  void carry_out(int i) {
    Stage& s = stage(i);
    const ActionKind kind = *s.next;
    if (!s.order.empty()) s.idle += s.at - s.now;  // the wait for the first input is nobody's loss
    s.now = s.at + duration(i, kind);
    const double kept = shape_.times.kept_for_weights;
    if (kind == ActionKind::forward) {
      s.order.push_back(forward(0, s.forwards));
      s.forward_end[static_cast<std::size_t>(s.forwards++)] = s.now;
      s.memory += 1;
    } else if (kind == ActionKind::backward_input) {
      s.order.push_back(backward_input(0, s.inputs));
      s.input_end[static_cast<std::size_t>(s.inputs++)] = s.now;
      s.memory -= 1 - kept;
    } else {
      s.order.push_back(backward_weight(0, s.weights++));
      s.memory -= kept;
    }
    if (kind != ActionKind::backward_weight) s.forward_was_last = kind == ActionKind::forward;
  }

  const PipelineShape& shape_;
  double limit_;
  Choices choices_;
  std::vector<Stage> stages_;
};

using Orders = std::vector<std::vector<Action>>;

/// The longest time that a rank takes from its first pass to its last when the ranks follow these orders.
double span_of(const Orders& orders, const PipelineShape& shape) {
  const auto m = static_cast<std::size_t>(shape.micro_batches), p = orders.size();
  const auto duration = [&](std::size_t rank, ActionKind kind) { return pass_time(shape.times, rank, kind); };
  std::vector<std::vector<double>> forward_end(p, std::vector<double>(m, kNever)), input_end = forward_end;
  std::vector<std::size_t> done(p, 0);
  std::vector<double> now(p, 0), begin(p, kNever);
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t r = 0; r < p; ++r)
      for (; done[r] < orders[r].size(); ++done[r]) {
        const Action& a = orders[r][done[r]];
        const auto mb = static_cast<std::size_t>(a.micro_batch);
        double ready = 0;
        if (a.kind == ActionKind::forward && r > 0) ready = forward_end[r - 1][mb] + shape.times.message;
        if (a.kind == ActionKind::backward_input) ready = r + 1 == p ? forward_end[r][mb] : input_end[r + 1][mb] + shape.times.message;
        if (ready == kNever) break;
        const double start = std::max(now[r], ready);
        if (begin[r] == kNever) begin[r] = start;
        now[r] = start + duration(r, a.kind);
        if (a.kind == ActionKind::forward) forward_end[r][mb] = now[r];
        if (a.kind == ActionKind::backward_input) input_end[r][mb] = now[r];
        progress = true;
      }
  }
  double longest = 0;
  for (std::size_t r = 0; r < p; ++r) longest = std::max(longest, now[r] - begin[r]);
  return longest;
}

/// The best of the heuristic's choices and of the orders made by hand, which keep within the limit.
PipelineProgram searched(const std::string& name, const PipelineShape& shape, double limit, std::initializer_list<PipelineProgram (*)(const PipelineShape&)> by_hand) {
  Orders best;
  double best_span = kNever;
  const auto consider = [&](Orders orders) {
    const double span = span_of(orders, shape);
    if (span >= best_span) return;
    best_span = span;
    best = std::move(orders);
  };
  for (int bits = 0; bits < 8; ++bits) {
    Search search(shape, limit, {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0});
    if (search.run()) consider(search.take_orders());
  }
  for (const auto make : by_hand) {
    Orders orders = make(shape).ranks;
    for (auto& order : orders) std::erase_if(order, [](const Action& a) { return is_message(a.kind); });
    consider(std::move(orders));
  }
  PipelineProgram out = empty_looped(name, shape, 1);
  out.ranks = std::move(best);
  return with_messages(out);
}

}  // namespace

PipelineProgram make_zero_bubble_1p(const PipelineShape& shape) { return searched("zb-1p", shape, shape.stages, {make_zero_bubble_h1}); }
PipelineProgram make_zero_bubble_2p(const PipelineShape& shape) { return searched("zb-2p", shape, 2 * shape.stages, {make_zero_bubble_h1, make_zero_bubble_h2}); }

}  // namespace rehearse::strategies
