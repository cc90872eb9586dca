#include "hwmodels/collective/closed_forms.h"

#include <cmath>

#include "sim/core/contract.h"

namespace rehearse::hwmodels {
namespace {

double shard_seconds(Bytes payload, int n, BytesPerSecond bandwidth) {
  return static_cast<double>(payload.value) / (n * bandwidth.value);
}
double whole_seconds(Bytes payload, BytesPerSecond bandwidth) {
  return static_cast<double>(payload.value) / bandwidth.value;
}

// Rounds once: the parts are added as seconds.
Duration rounds(int count, Duration alpha, double each_seconds) {
  return seconds(count * (to_seconds(alpha) + each_seconds));
}

}  // namespace

Duration ring_all_reduce_time(Bytes payload, int n, Duration alpha, BytesPerSecond bandwidth) {
  EXPECTS(n >= 1);
  return rounds(2 * (n - 1), alpha, shard_seconds(payload, n, bandwidth));
}

Duration ring_all_gather_time(Bytes payload, int n, Duration alpha, BytesPerSecond bandwidth) {
  EXPECTS(n >= 1);
  return rounds(n - 1, alpha, shard_seconds(payload, n, bandwidth));
}

Duration double_binary_tree_all_reduce_time(Bytes payload, int n, Duration alpha, BytesPerSecond bandwidth) {
  EXPECTS(n >= 1);
  if (n == 1) return Duration{0};
  return seconds(2 * std::log2(n) * to_seconds(alpha) + 2 * whole_seconds(payload, bandwidth));
}

Duration switch_all_reduce_time(Bytes payload, int n, Duration alpha, BytesPerSecond bandwidth) {
  EXPECTS(n >= 1);
  if (n == 1) return Duration{0};
  return seconds(2 * to_seconds(alpha) + whole_seconds(payload, bandwidth) * (n + 1) / n);
}

Duration pairwise_all_to_all_time(Bytes payload, int n, Duration alpha, BytesPerSecond bandwidth) {
  return ring_all_gather_time(payload, n, alpha, bandwidth);
}

Duration pipelined_broadcast_time(Bytes payload, int n, Duration alpha, BytesPerSecond bandwidth) {
  EXPECTS(n >= 1);
  if (n == 1) return Duration{0};
  return seconds((n - 1) * to_seconds(alpha) + whole_seconds(payload, bandwidth));
}

double all_reduce_bus_factor(int n) { return 2.0 * (n - 1) / n; }
double shard_bus_factor(int n) { return (n - 1.0) / n; }

}  // namespace rehearse::hwmodels
