// Speed of the event queue under the hold model: pop the next event, push one a random time later, at
// constant size.
// Bar (design, section 12): 20 M plan instructions/s/core in all, so one operation pair must stay well below
// 50 ns.
#include "sim/engine/event_queue.h"

#include <benchmark/benchmark.h>

namespace rehearse::engine {
namespace {

std::uint64_t next_random(std::uint64_t& x) {  // xorshift64
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return x;
}

void hold(benchmark::State& state) {
  EventQueue queue;
  std::uint64_t x = 88172645463325252ULL;
  auto later = [&] { return Duration{static_cast<std::int64_t>(next_random(x) >> 44)}; };
  for (std::int64_t i = 0; i < state.range(0); ++i) queue.push(TimePoint{later()}, Phase::stream, 0);
  for (auto _ : state) {
    const EventQueue::Event event = queue.pop();
    queue.push(event.time + later(), Phase::stream, event.payload);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(hold)->ArgName("waiting")->Arg(16)->Arg(256)->Arg(4096)->Arg(65536)->Arg(1 << 20);

}  // namespace
}  // namespace rehearse::engine
