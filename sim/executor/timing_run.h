// One run of a plan in time, from the inside: who waits for what, what runs, what time went on.
// Leaves out what work costs (costs.h). Internal to this room; a file for each part of it:
//   timing.cpp          the order of time, the result
//   timing_host.cpp     host threads: issuing, waiting
//   timing_blocks.cpp   blocks replayed in one piece
//   timing_streams.cpp  heads of streams, meetings of ranks
//   timing_work.cpp     work that begins, shares a GPU and ends
//   timing_rhythm.cpp   stretches that come again, counted instead of run
//   timing_lockstep.cpp the same where host threads keep step with their devices
//   timing_standstill.cpp   work between two moments in which all is through, measured once
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/executor/block_replay.h"
#include "sim/executor/repeats.h"
#include "sim/executor/standstill.h"
#include "sim/executor/timing_state.h"

namespace rehearse::executor {

class TimingRun {
 public:
  TimingRun(const plan::Plan& plan, const CostTable& costs, const TimingOptions& options);
  TimingResult run();

 private:
  using GroupAxis = plan::GroupAxis;
  using Opcode = plan::Opcode;
  using Stream = plan::Stream;

  std::size_t classes() const { return plan_.classes.size(); }
  const plan::Program& program(std::size_t r) const { return plan_.classes[r].program; }
  const Priced& price(std::size_t r, const Item& item) const {
    switch (item.op) {
      case Opcode::kernel: return costs_.kernel(ranks_[r].rank_class, item.index);
      case Opcode::collective: return costs_.collectives[ranks_[r].rank_class][item.index];
      case Opcode::copy: return costs_.copies[item.index];
      default: return costs_.messages[ranks_[r].rank_class][item.index];
    }
  }
  Cause cause(const Item& item) const;

  /// Ranks in blocks, each with its earliest: two short scans find the next of a thousand ranks.
  void set_next(std::size_t r, std::int64_t t) {
    next_[r] = t;
    const std::size_t block = r / kBlock, end = std::min(next_.size(), (block + 1) * kBlock);
    earliest_[block] = *std::min_element(next_.begin() + static_cast<std::ptrdiff_t>(block * kBlock), next_.begin() + static_cast<std::ptrdiff_t>(end));
  }
  std::int64_t next(std::size_t r) const {
    std::int64_t t = kNever;
    for (const int k : used_) {
      const StreamState& s = ranks_[r].streams[static_cast<std::size_t>(k)];
      t = std::min(t, s.running ? s.finish : s.start);
    }
    return t;
  }

  // Host threads (timing_host.cpp)
  std::uint32_t slot(const plan::Call& call, const plan::Instruction& i) const { return call.frames[static_cast<std::size_t>(i.frame)] + i.index; }
  std::uint32_t new_event(RankState& rank, Stream recorder) {
    rank.events.emplace_back().recorder = recorder;
    return static_cast<std::uint32_t>(rank.events.size() - 1);
  }
  void push(RankState& rank, Stream s, Opcode op, std::uint32_t index) {
    rank.streams[static_cast<std::size_t>(s)].fifo.push_back({op, s, false, index, static_cast<std::uint32_t>(rank.call), 0, rank.host});
  }
  /// `to` waits for what `from` has been given so far.
  void join(RankState& rank, Stream from, Stream to) {
    const std::uint32_t e = new_event(rank, from);
    push(rank, from, Opcode::record, e);
    push(rank, to, Opcode::wait, e);
  }
  /// The host runs ahead of the device until it has to wait for it.
  void issue(std::size_t r);
  bool host_resumes(RankState& rank);
  /// Lets the host thread go on if what it waited for has happened.
  void settle(std::size_t r);
  void end_of_step(std::size_t r, StreamState& compute, int step);

  // Whole blocks (timing_blocks.cpp)
  /// Issues a block in one piece, if it is one that can be replayed: its place is kept on each stream that it uses.
  bool issue_whole(RankState& rank, std::uint32_t block);
  /// Runs a block by itself, the host far ahead, and keeps what it did.
  std::uint32_t measure(std::size_t rank_class, std::uint32_t block);
  const Load& messages_of(std::size_t rank_class);
  /// Queues the instructions of a block as the host would have issued them.
  void open(RankState& rank, const BlockReplay& b, std::uint32_t event);
  void push_opened(RankState& rank, Stream s, Opcode op, std::uint32_t index) {
    rank.streams[static_cast<std::size_t>(s)].opened.push_back({op, s, false, index, static_cast<std::uint32_t>(rank.call), 0, rank.host});
  }
  void join_opened(RankState& rank, Stream from, Stream to) {
    const std::uint32_t e = new_event(rank, from);
    rank.events[e].of_opened = true;
    push_opened(rank, from, Opcode::record, e);
    push_opened(rank, to, Opcode::wait, e);
  }
  /// The compute stream has come to a whole block: replays it if nothing else can happen meanwhile, else opens it.
  void meet_whole(std::size_t r);
  bool can_replay(const RankState& rank, const BlockReplay& b, const Item& item);
  /// The place of an opened block on a side stream gives way to its work. False: the block is not open yet.
  bool reach_opened(StreamState& s);

  // Streams (timing_streams.cpp)
  /// When the head of a stream may go on.
  std::int64_t ready_and_issued(const StreamState& s, const Item& item) {
    if (item.issue >= s.ready) issue_bound_ = true;
    if (measuring_) [[unlikely]]
      slack_ = std::min(slack_, s.ready - (item.issue - kLongAgo));
    return std::max(s.ready, item.issue);
  }
  /// Moves the head of a stream as far as it goes without time passing; sets when the next work may start.
  void poll(std::size_t r, int stream);
  /// Until when nothing else on this rank can start or run: a kernel that ends by then needs no event and no solver.
  std::int64_t undisturbed_until(const RankState& rank) const;
  /// Has this stream work that nothing holds back, and has only not been looked at yet in this instant?
  bool may_go_on(const RankState& rank, const StreamState& s) const;
  void run_alone(std::size_t r, StreamState& s, const Item& item, std::int64_t start);
  void arrive_collective(std::size_t r, int stream, const Item& item);
  /// Where the members of a rank's group on an axis meet.
  std::uint32_t meeting_of(std::size_t r, GroupAxis axis);
  /// The k-th send on a channel meets the k-th receive.
  void arrive_message(std::size_t r, int stream, const Item& item);

  // Work (timing_work.cpp)
  /// Completions before starts: what ends at this instant is out of the way of what begins.
  void happen(std::size_t r, std::int64_t now);
  void begin(std::size_t r, int stream, std::int64_t now);
  /// Share of the SMs that collectives hold now.
  double held_sms(const RankState& rank) const;
  /// Must the collective or kernel at the head of a data-parallel stream, which may begin now, wait for SMs? Blocks get them in the order in
  /// which their kernels come: none of its own is there before the last of the kernel that runs on the compute stream. (What belongs to
  /// tensor, context and expert groups is begun first on purpose: by the order of launches, by priority, or with SMs set aside.)
  bool finds_no_sms(std::size_t r, int stream, std::int64_t now) const;
  /// When the kernel on the compute stream leaves SMs to others. Precondition: one runs.
  std::int64_t leaves_sms(const StreamState& compute, std::int64_t now) const;
  /// Tiles that waited for held SMs begin: those are free, or the other tiles are through.
  void begin_late_tiles(StreamState& s, std::int64_t now);
  void complete(std::size_t r, int stream, std::int64_t now);
  /// Max-min fair shares among what runs on this rank now. Collectives hold their SMs; kernels share the rest.
  void share(RankState& rank, std::int64_t now);
  /// How two pieces of work share a GPU: the same two meet again and again.
  struct SharedPair {
    std::array<const Priced*, 2> work{};
    std::array<double, 2> rate{};
  };
  const SharedPair& shared(const Priced* a, const Priced* b);
  void trace(std::size_t r, const Item& item, std::int64_t from, std::int64_t to);
  /// Keeps when the device was through with this, if that is asked for.
  void note_progress(RankState& rank, int stream, const Item& item, std::int64_t now) {
    if (!options_.progress) return;
    if (stream > 0) rank.result.done[static_cast<std::size_t>(stream)].push_back(now);
    else if (!measuring_) rank.result.call_device[item.call] = now;
  }

  // Rhythm (timing_rhythm.cpp)
  /// All that decides what happens next, relative to the time; and where the queues and accounts stand.
  struct Moment {
    std::int64_t time = 0, replayed = 0;
    std::vector<std::int64_t> state;
    struct Stream {
      std::size_t head = 0;
      std::int64_t ready = 0, last_issued = 0, last_met = 0;
      std::int64_t earliest = 0;                      // beginning of what is not accounted for yet
      std::size_t last_event = 0, searched = 0;       // queue entries ahead: the last that waits for what is recorded; all
      Cause last = Cause::idle;
      bool rests = false;
    };
    struct Rank {
      std::array<Stream, plan::kStreams> streams;
      std::vector<std::uint32_t> opened_events;       // that opened blocks record for others
      std::array<std::int64_t, kCauses> time{};
      std::array<std::int64_t, plan::kStreams> busy{};
      std::size_t host_works = 0;
      std::size_t call = 0, position = 0;             // of the host thread
      std::int64_t host = 0;
      std::size_t uses = 0;                           // of events, until now
    };
    std::vector<Rank> ranks;
    bool in_step = false;                             // hosts keep step, and are part of `state`
    std::int64_t instructions = 0;
  };
  /// From one moment to an equal one, for one rank.
  struct Stride {
    std::int64_t issue = 0;                           // of host time
    std::uint32_t events = 0, calls = 0;
    std::size_t times = SIZE_MAX;                     // that it comes again
  };
  void expect_rhythm();
  /// The first rank has come on: if all stand as they stood before, jumps as far as the queues are the same.
  void look_for_rhythm(std::int64_t now);
  Moment moment(std::int64_t now) const;
  void add_meetings(Moment& m) const;
  std::optional<Stride> stride(std::size_t r, const Moment& a, const Moment& b) const;
  bool jump(const Moment& a, const Moment& b);
  std::optional<std::vector<std::uint32_t>> repeated_events(std::size_t r, const Moment& a, const Moment& b, const Stride& stride, std::size_t times) const;
  /// Does this stream stand as before, or rest?
  bool goes_on(std::size_t r, std::size_t stream, const Moment& a, const Moment& b) const;
  void move_on(std::size_t r, const Moment& a, const Moment& b, std::size_t times);

  // Rhythm of hosts that keep step (timing_lockstep.cpp)
  /// What a host thread did with the latest event of a slot: recorded it, let a stream wait for it, or waited itself.
  struct EventUse {
    enum class Kind : std::uint8_t { record, wait, host_wait } kind;
    plan::Stream stream;
    plan::Frame frame;
    std::uint32_t slot = 0, call = 0, event = 0;
  };
  /// Slots and events of a rank after some strides that were left out.
  struct Strides {
    std::size_t times = 0;
    std::vector<std::uint32_t> slot_event;
  };
  void note_use(RankState& rank, EventUse::Kind kind, plan::Stream stream, plan::Frame frame, std::uint32_t in_frame, std::uint32_t event) {
    if (!notes_uses_ || measuring_) return;
    uses_[static_cast<std::size_t>(&rank - ranks_.data())].push_back({kind, stream, frame, in_frame, static_cast<std::uint32_t>(rank.call), event});
  }
  bool add_hosts(Moment& m) const;
  bool jump_in_step(const Moment& a, const Moment& b);
  std::size_t strides_of_same_calls(std::size_t r, const Moment& a, const Moment& b) const;
  std::optional<Strides> use_events(std::size_t r, const Moment& a, const Moment& b, std::size_t times);

  // Standstills (timing_standstill.cpp)
  /// Where a rank stood when the reprise that is being measured began.
  struct Beginning {
    std::size_t call = SIZE_MAX;
    int step = 0;
    std::size_t reprise = 0;
    std::int64_t host = 0;
    std::array<std::int64_t, kCauses> time{};
    std::array<std::int64_t, plan::kStreams> busy{};
  };
  /// The host thread goes on: at a standstill, on to the last of its block if that is known to come like this.
  void pass_standstill(std::size_t r);
  bool stands_still(const RankState& rank) const;
  /// Finds what a reprise touches. False: it depends on more than is known at a standstill.
  bool survey(const plan::Block& block, Reprise& reprise) const;
  bool waits_are_past(const RankState& rank, const Reprise& reprise) const;
  void keep(const RankState& rank, const Beginning& since, Reprise& reprise) const;
  void go_through(RankState& rank, const Reprise& reprise);

  // Accounts
  static std::int64_t in_window(const RankState& rank, std::int64_t from, std::int64_t to) {
    return rank.measured_from == kNever ? 0 : std::max<std::int64_t>(0, to - std::max(from, rank.measured_from));
  }
  static void account(RankState& rank, Cause c, std::int64_t from, std::int64_t to) { rank.result.time[static_cast<std::size_t>(c)] += in_window(rank, from, to); }
  /// The compute stream waited for the host thread: for its own work as far as that went on meanwhile, else for it to issue.
  static void account_host(RankState& rank, std::int64_t from, std::int64_t to);
  /// Waits have been accounted for where they happened; what is left before a start is the host's.
  void account_gap(RankState& rank, const StreamState& s, std::int64_t start, const Item& item) {
    if (item.issue >= start) account_host(rank, s.ready, start);
    else account(rank, Cause::bubble, s.ready, start);
  }

  TimingResult finish();
  std::string describe(std::size_t r) const;

  struct Rendezvous {
    std::vector<std::pair<std::size_t, int>> senders, receivers;
  };

  const plan::Plan& plan_;
  const CostTable& costs_;
  const TimingOptions& options_;
  std::vector<RankState> ranks_;        // by class, and a spare one to measure blocks on
  static constexpr std::size_t kBlock = 32;
  std::vector<std::int64_t> next_;      // by rank: when its next work starts or ends
  std::vector<std::int64_t> earliest_;  // of each block of ranks
  std::vector<Cause> kernel_cause_;
  std::vector<int> used_;               // streams that are given anything, the compute stream first
  std::array<SharedPair, 64> pairs_;    // the latest of each hash
  std::map<std::tuple<std::uint16_t, std::uint16_t, std::uint8_t>, Rendezvous> messages_;
  std::vector<std::vector<std::pair<std::size_t, int>>> meetings_;                    // who waits (rank, stream) in each group
  std::vector<std::array<std::uint32_t, plan::kGroupAxes>> meetings_of_;              // by rank and axis
  static constexpr std::int64_t kLongAgo = -(std::int64_t{1} << 60);
  static constexpr std::uint32_t kUnmeasured = UINT32_MAX, kNotReplayed = UINT32_MAX - 1;
  bool replays_allowed_ = false, measuring_ = false;
  std::vector<std::uint32_t> replay_of_;   // by block: index into replays_
  std::vector<BlockReplay> replays_;
  Load most_messages_;                     // of the class asked about last
  std::size_t most_messages_for_ = SIZE_MAX;
  std::int64_t slack_ = kNever;            // of the block being measured
  std::optional<Repeats> rhythm_;          // of the first rank, if jumps are allowed
  std::vector<Moment> moments_;            // of this step of its, latest last
  std::size_t moments_step_ = 0, next_mark_ = SIZE_MAX;
  bool issue_bound_ = false;               // something has waited for a host since the last moment
  bool notes_uses_ = false;                // hosts synchronise with their devices within the rhythm
  std::vector<std::vector<EventUse>> uses_;   // of events, by rank, in the order of issue
  bool standstills_allowed_ = false;
  std::vector<BlockStandstills> standstills_;   // by block
  std::vector<Beginning> since_;                // by rank
  std::vector<Slice> trace_;
  std::int64_t instructions_ = 0, replayed_ = 0, again_ = 0;
};

}  // namespace rehearse::executor
