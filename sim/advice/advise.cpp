#include "sim/advice/advise.h"

#include <algorithm>

namespace rehearse::advice {
namespace {

constexpr int kMostSteps = 24;
constexpr double kWorthIt = 1.01;   // throughput gained by a change that is worth telling

class Walk {
 public:
  Walk(Case start, const std::function<void(int)>& progress) : now_(std::move(start)), progress_(progress) {}

  Advice run() {
    // The first reading reports the user's own mistakes.
    const scenario::Scenario s = now_.read();
    (void)s;
    advice_.start = advice_.end = *ask({});
    for (int i = 0; i < kMostSteps; ++i) {
      Step step{.before = advice_.end, .tried = trials()};
      const std::optional<std::size_t> chosen = advice_.end.fits ? faster(step) : smaller(step);
      if (!chosen) {
        advice_.last_tried = std::move(step.tried);
        advice_.gave_up = !advice_.end.fits;
        break;
      }
      step.chosen = *chosen;
      const Trial& trial = step.tried[*chosen];
      now_ = now_.with(trial.change);
      advice_.end = trial.answer;
      advice_.steps.push_back(std::move(step));
    }
    advice_.settings = now_.settings();
    return std::move(advice_);
  }

 private:
  std::optional<Answer> ask(const std::vector<std::string>& settings) {
    if (progress_) progress_(++asked_);
    return now_.ask(settings);
  }

  std::vector<Trial> trials() {
    std::vector<Trial> out;
    for (Change& change : changes_near(now_.read())) {
      // Memory that was short does not become plenty: offload is looked at only while the job does not fit.
      if (change.offloads && advice_.end.fits) continue;
      if (const auto answer = ask(change.settings)) out.push_back({std::move(change), *answer});
    }
    return out;
  }

  /// Among changes that fit, the fastest; without offload if one does.
  static std::optional<std::size_t> smaller(const Step& step) {
    for (const bool offload : {false, true}) {
      std::optional<std::size_t> best;
      for (std::size_t i = 0; i < step.tried.size(); ++i) {
        const Trial& t = step.tried[i];
        if (!t.answer.fits || t.change.offloads != offload) continue;
        if (!best || t.answer.tokens_per_second > step.tried[*best].answer.tokens_per_second) best = i;
      }
      if (best) return best;
      // None alone is enough: the one that frees most, if it frees anything.
      for (std::size_t i = 0; i < step.tried.size(); ++i) {
        const Trial& t = step.tried[i];
        if (t.change.offloads != offload || t.answer.peak_device >= step.before.peak_device) continue;
        if (!best || t.answer.peak_device < step.tried[*best].answer.peak_device) best = i;
      }
      if (best) return best;
    }
    return std::nullopt;
  }

  static std::optional<std::size_t> faster(const Step& step) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < step.tried.size(); ++i) {
      const Answer& a = step.tried[i].answer;
      if (!a.fits || a.tokens_per_second < kWorthIt * step.before.tokens_per_second) continue;
      if (!best || a.tokens_per_second > step.tried[*best].answer.tokens_per_second) best = i;
    }
    return best;
  }

  Case now_;
  const std::function<void(int)>& progress_;
  Advice advice_;
  int asked_ = 0;
};

}  // namespace

Advice advise(const Case& start, const std::function<void(int)>& progress) { return Walk(start, progress).run(); }

std::optional<Trial> cheapest_fit(const Case& start) {
  std::optional<Trial> best;
  for (Change& change : changes_near(start.read())) {
    if (change.offloads && best && !best->change.offloads) continue;
    if (!start.fits(change.settings).value_or(false)) continue;
    const auto answer = start.ask(change.settings);
    if (!answer || !answer->fits) continue;
    const bool better = !best || (best->change.offloads && !change.offloads) || answer->tokens_per_second > best->answer.tokens_per_second;
    if (better) best = Trial{std::move(change), *answer};
  }
  return best;
}

}  // namespace rehearse::advice
