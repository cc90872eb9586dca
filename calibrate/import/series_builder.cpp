#include "calibrate/import/series_builder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace rehearse::calibrate {

namespace {

constexpr std::int64_t kExact = std::int64_t{1} << 53;

bool possible(const Facts& parameters) {
  return std::all_of(parameters.begin(), parameters.end(), [](const auto& p) {
    const auto* whole = std::get_if<std::int64_t>(&p.second);
    return whole == nullptr || (*whole >= 0 && *whole < kExact);
  });
}

}  // namespace

std::int64_t whole_number(double v) { return std::isnan(v) ? 0 : static_cast<std::int64_t>(std::clamp(v, -static_cast<double>(kExact), static_cast<double>(kExact))); }

std::string SeriesBuilder::refused() const { return refused_ == 0 ? std::string() : std::to_string(refused_) + " rows with impossible sizes or times"; }

void SeriesBuilder::add(const std::string& operation, const Facts& parameters, double seconds) {
  if (!(seconds >= 1e-12 && seconds <= 1e6) || !possible(parameters)) {
    ++refused_;
    return;
  }
  const auto [at, is_new] = index_.emplace(identity(operation, parameters), order_.size());
  if (is_new) order_.push_back({operation, parameters, {}});
  order_[at->second].seconds.push_back(seconds);
}

std::vector<Series> SeriesBuilder::take() {
  std::vector<Series> out;
  for (Group& g : order_) {
    std::vector<double>& t = g.seconds;
    std::sort(t.begin(), t.end());
    const auto n = static_cast<double>(t.size());
    const std::size_t middle = t.size() / 2;
    Series s;
    s.operation = std::move(g.operation), s.parameters = std::move(g.parameters);
    s.samples = static_cast<std::int64_t>(t.size());
    s.median_s = t.size() % 2 == 1 ? t[middle] : (t[middle - 1] + t[middle]) / 2;
    s.min_s = t.front(), s.max_s = t.back();
    // Held inside the extremes, which rounding could leave.
    s.mean_s = std::clamp(std::accumulate(t.begin(), t.end(), 0.0) / n, t.front(), t.back());
    double squares = 0;
    for (const double v : t) squares += (v - *s.mean_s) * (v - *s.mean_s);
    if (t.size() > 1) s.stddev_s = std::sqrt(squares / (n - 1));
    // 95 % interval of the median by order statistics: ranks n/2 -+ 0.98 sqrt(n). Too few samples tell nothing.
    if (t.size() >= 6 && s.median_s > 0) {
      const auto low = static_cast<std::size_t>(std::max(0.0, std::floor(n / 2 - 0.98 * std::sqrt(n))));
      const auto high = static_cast<std::size_t>(std::min(n - 1, std::ceil(n / 2 + 0.98 * std::sqrt(n))));
      s.relative_error = (t[high] - t[low]) / 2 / s.median_s;
    }
    out.push_back(std::move(s));
  }
  order_.clear(), index_.clear();
  return out;
}

}  // namespace rehearse::calibrate
