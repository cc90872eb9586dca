// What the executor remembers of a running plan: queued work, events, streams and ranks.
// Leaves out how it changes (timing.cpp). Internal to this room.
#pragma once

#include <vector>

#include "sim/executor/timing.h"

namespace rehearse::executor {

constexpr std::int64_t kNever = INT64_MAX;
constexpr std::int64_t kUnset = -1;
constexpr std::uint32_t kAllStreams = (1u << plan::kStreams) - 1;

struct Item {
  plan::Opcode op;
  plan::Stream stream;
  bool whole = false;    // a whole block: on the compute stream it is replayed or opened, elsewhere it keeps the place
  std::uint32_t index;   // spec, or event instance; of a whole block: its replay
  std::uint32_t call;
  std::uint32_t first_event = 0;   // of a whole block: the events of its records follow each other
  std::int64_t issue;    // host clock when it was issued; of a whole block: before its first instruction
};

struct Event {
  std::int64_t time = kUnset;
  plan::Stream recorder = plan::Stream::compute;
  Cause cause = Cause::idle;   // what the recording stream was doing before
  bool of_opened = false;      // between instructions of an opened block; made when that was opened, not when it was issued
  std::int64_t issued = 0;     // when the host had issued that, if the stream had to wait for the host
  std::int64_t met = 0;        // when the peers for that were there, if it had to wait for them
};

/// The same event in a stretch that comes `by` picoseconds later. Precondition: it has happened.
inline Event later(Event e, std::int64_t by) {
  e.time += by;
  if (e.issued != 0) e.issued += by;
  if (e.met != 0) e.met += by;
  return e;
}

struct StreamState {
  std::vector<Item> fifo;
  std::size_t head = 0;
  std::vector<Item> opened;      // work of opened blocks, in their order; goes before the rest of the fifo
  std::size_t opened_head = 0;
  std::uint32_t left = 0;        // how many of them are due before `head`
  std::int64_t ready = 0;        // end of the last thing on this stream, waits included
  std::int64_t start = kNever;   // when the head may start; kNever: blocked or empty
  bool running = false;
  bool arrived = false;          // the head waits for peers
  bool met = false;              // the peers are there: `start` is settled
  std::int64_t arrival = kUnset; // when this side was ready, if the work needs others
  std::int64_t began = 0, finish = 0, updated = 0;
  double remaining = 0, rate = 1;
  bool late = false;             // SMs of the running kernel are held by others: their tiles have not begun
  double tail = 0;               // of the running kernel: what remains of it once it needs no more than some SMs
  bool without_sms = false;      // the head may begin at `start`, when the running kernel leaves it SMs
  bool crossed = false;          // `ready` is when another stream was through
  const Priced* work = nullptr;
  Cause last = Cause::idle;      // what the last work was, for those who wait for it
  std::int64_t last_issued = 0;  // when the host had issued it, if this stream had to wait for the host; not kept of the compute stream
  std::int64_t last_met = 0;     // when its peers were there, if it had to wait for them

  bool empty() const { return left == 0 && head == fifo.size(); }
  /// Precondition: not empty.
  const Item& front() const { return left > 0 ? opened[opened_head] : fifo[head]; }
  void pop() {
    if (left == 0) {
      ++head;
      return;
    }
    --left;
    if (++opened_head == opened.size()) {
      opened.clear();
      opened_head = 0;
    }
  }
  bool idle() const { return !running && !arrived && !met && start == kNever; }
};

/// One rank (of a class): its host thread and its streams.
struct RankState {
  std::size_t rank_class = 0;
  std::array<StreamState, plan::kStreams> streams;
  std::vector<std::uint32_t> slot_event;   // latest event instance recorded in each slot
  std::vector<Event> events;
  std::size_t call = 0;                    // next call of the step
  std::size_t position = 0;                // next instruction of the call
  int step = 0;
  std::int64_t host = 0;
  std::uint32_t host_waits = UINT32_MAX;
  std::uint32_t host_syncs = 0;            // bits of the streams that the host waits for
  bool host_done = false;
  std::vector<std::int64_t> step_end;
  ClassTiming result;
  std::int64_t measured_from = kNever;
  std::size_t past_host_works = 0;         // of result.host_works: those that are over before whatever the compute stream waits for next
};

}  // namespace rehearse::executor
