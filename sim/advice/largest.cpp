#include "sim/advice/largest.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace rehearse::advice {
namespace {

/// Monotone search: `ask` says what a size gives, or why nothing; sizes are multiples of `unit` up to `most`.
Largest search(std::int64_t unit, std::int64_t most, const std::function<std::optional<Sized>(std::int64_t, std::string&)>& ask) {
  Largest out;
  auto fits = [&](std::int64_t size) {
    std::string why;
    const std::optional<Sized> got = ask(size, why);
    if (got) out.tried.push_back(*got);
    else if (size == unit) out.refusal = why;
    return got && got->answer.fits;
  };
  // `low` fits, `high` does not (or is past the end).
  const std::int64_t end = most / unit * unit;
  std::int64_t low = 0, high = unit;
  while (high <= end && fits(high)) low = high, high *= 2;
  high = std::min(high, end + unit);
  while (high - low > unit) {
    const std::int64_t middle = (low + high) / 2 / unit * unit;
    (fits(middle) ? low : high) = middle;
  }
  out.bounded = low < end;
  std::sort(out.tried.begin(), out.tried.end(), [](const Sized& a, const Sized& b) { return a.size < b.size; });
  out.tried.erase(std::unique(out.tried.begin(), out.tried.end(), [](const Sized& a, const Sized& b) { return a.size == b.size; }), out.tried.end());
  for (std::size_t i = 0; i < out.tried.size(); ++i) {
    const Answer& a = out.tried[i].answer;
    if (!a.fits) continue;
    out.largest = i;
    if (!out.fastest || a.tokens_per_second > out.tried[*out.fastest].answer.tokens_per_second) out.fastest = i;
  }
  return out;
}

}  // namespace

Largest largest_micro_batch(const Case& job, const std::function<void(int)>& progress) {
  const scenario::Scenario s = job.read();
  const std::int64_t accumulation = s.strategy.micro_batches(), data = s.strategy.parallelism.degrees.data;
  int asked = 0;
  return search(1, 1 << 16, [&](std::int64_t micro, std::string& why) -> std::optional<Sized> {
    if (progress) progress(++asked);
    const std::int64_t batch = micro * data * accumulation;
    std::vector<std::string> settings{fmt::format("training.micro_batch_size={}", micro), fmt::format("training.global_batch_size={}", batch)};
    const auto answer = job.ask(settings, &why);
    if (!answer) return std::nullopt;
    return Sized{micro, "", batch, std::move(settings), *answer};
  });
}

Largest largest_model(const Case& job, const std::function<void(int)>& progress) {
  const scenario::Scenario s = job.read();
  const strategies::Degrees& d = s.strategy.parallelism.degrees;
  const std::int64_t stages = static_cast<std::int64_t>(d.pipeline) * s.strategy.pipeline.virtual_stages;
  const std::int64_t unit = std::lcm<std::int64_t>(d.tensor, stages);
  int asked = 0;
  return search(unit, 1024, [&](std::int64_t n, std::string& why) -> std::optional<Sized> {
    if (progress) progress(++asked);
    const std::int64_t hidden = 128 * n, mlp = (8 * hidden / 3 + 255) / 256 * 256;
    std::vector<std::string> settings{fmt::format("model={{layers: {}, hidden: {}, heads: {}, ffn_hidden: {}, vocab: {}}}", n, hidden, n, mlp, s.model.vocab)};
    if (d.expert > 1) settings.emplace_back("parallelism.expert=1");   // the models that are tried have no experts
    const auto answer = job.ask(settings, &why);
    if (!answer) return std::nullopt;
    return Sized{n, fmt::format("{} layers, hidden {}", n, hidden), 0, std::move(settings), *answer};
  });
}

}  // namespace rehearse::advice
