// A block of instructions that meets no other traffic takes the same time whenever it runs: what is kept of it to run it
// again in one stroke. Leaves out measuring it, which the executor does by running it alone (timing.cpp).
#pragma once

#include <array>
#include <vector>

#include "sim/executor/timing_state.h"

namespace rehearse::executor {

/// An event that a block records for itself and for whoever comes later.
struct ReplayedRecord {
  plan::Stream stream;
  plan::Frame frame;
  std::uint32_t slot = 0;
  std::int64_t time = 0;
  Cause cause = Cause::idle;
};

/// What a block does when it runs by itself, in picoseconds after the end of the compute stream's work before it.
struct BlockReplay {
  std::uint32_t block = 0;
  std::size_t rank_class = 0;
  bool usable = false;
  bool beside_messages = false;   // pipeline messages leave its rates alone, and it theirs
  std::int64_t duration = 0;      // until the compute stream is through
  std::int64_t host = 0;          // host time to issue all of it
  std::int64_t slack = 0;         // nothing waits for the host if that begins to issue it less than this later
  unsigned streams = 0;           // bits of the streams beside compute that it uses
  std::array<std::uint32_t, plan::kStreams> items{};   // queue entries per stream, once opened
  std::array<std::int64_t, plan::kStreams> ready{};    // of each stream, after it
  std::array<Cause, plan::kStreams> last{};
  std::array<bool, plan::kStreams> crossed{};
  std::vector<ReplayedRecord> records;    // in the order of issue
  std::vector<std::uint32_t> waits;       // for which of the records, in the order of issue
  std::array<std::int64_t, kCauses> time{};
  std::array<std::int64_t, plan::kStreams> busy{};
  std::array<std::vector<std::int64_t>, plan::kStreams> done;   // ends of the works on other streams, if they are kept
};

/// May this block be measured at all? It must hold nothing that depends on other ranks or on what was before: no messages,
/// no collective that other classes take part in, no synchronisation of the host, no wait for an event that it has not
/// recorded itself; and some kernel on the compute stream. Fills in records (but their times) and waits.
bool may_replay(const plan::Plan& plan, const plan::RankClass& rank_class, const plan::Block& block, BlockReplay& replay);

/// Is there nothing but messages on the streams of messages?
bool messages_have_their_streams(const plan::Plan& plan);

/// The events that one instance of a block records.
struct EventRange {
  std::uint32_t first = 0, count = 0;
  bool holds(std::uint32_t event) const { return event - first < count; }
};

/// How much of each shared resource the messages of a class may use at once, at most: one per message stream.
Load most_of_messages(const std::vector<Priced>& messages);

/// Is there room for `messages` beside everything that the block may run at once?
bool fits_beside(const CostTable& costs, std::size_t rank_class, const plan::Block& block, const Load& messages);

/// Will this item, next on its stream, stay where it is while the compute stream runs one more block? It waits for a block
/// that the compute stream has not come to, or for an event that neither that block (`own`) nor a message could record.
bool stays_blocked(const RankState& rank, const Item& item, const EventRange& own);

/// Could stream `s`, as it stands, start anything before `until`, or disturb work in the meantime? Messages are taken to
/// do neither when `beside_messages`.
bool stays_quiet(const RankState& rank, int s, std::int64_t until, bool beside_messages, const EventRange& own);

}  // namespace rehearse::executor
