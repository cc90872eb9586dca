// The plan: for each class of equal ranks, the virtual CUDA + NCCL program that its host thread would issue.
// Leaves out what anything costs (hwmodels) and when it happens (sim/executor).
//
// A program is a list of calls of blocks. A block (one layer's forward pass, say) is written once and called for every
// layer and micro-batch; what differs between calls is the frames, in which its tensors and events live.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/communication.h"
#include "sim/core/units.h"
#include "sim/model/kernel.h"

namespace rehearse::plan {

/// CUDA streams of one rank. Work on a stream runs in the order of issue.
enum class Stream : std::uint8_t {
  compute,
  tensor,        // tensor-parallel collectives
  context,       // context-parallel rings and all-to-alls
  expert,        // expert dispatch and combine
  data_gather,   // parameters on their way: copies around all-gathers
  data_reduce,   // gradients on theirs
  data_shard,    // collectives of the group that shares parameters, whose library runs them one after the other
  data_replicate,// second reduction of hybrid sharding
  send_forward,  // pipeline messages: one queue per direction and side
  recv_forward,
  send_backward,
  recv_backward,
  to_device,     // host-to-device copies
  to_host,       // device-to-host copies
  stash,         // copies of activations within the device, and back
  count_
};
constexpr int kStreams = static_cast<int>(Stream::count_);
std::string_view name_of(Stream s);

/// What live bytes are for. The ledger and the memory report are kept by these.
enum class Category : std::uint8_t { parameter, gradient, optimizer, activation, temporary, communication, workspace, count_ };
constexpr int kCategories = static_cast<int>(Category::count_);
std::string_view name_of(Category c);

/// Which process group a collective runs on.
enum class GroupAxis : std::uint8_t {
  tensor, context, context_ulysses, context_ring, data, data_replicate, data_context, data_secondary, data_inside, data_across, pipeline, model, expert, expert_inside, expert_across, expert_tensor,
  expert_data, embedding, mirror, world, count_
};
constexpr int kGroupAxes = static_cast<int>(GroupAxis::count_);
std::string_view name_of(GroupAxis a);

enum class Opcode : std::uint8_t {
  // timing
  kernel,       // index: kernel spec                        value: host time to issue (ps)
  collective,   // index: collective spec, flags: Sync       value: host time to issue (ps)
  send, recv,   // index: message spec, flags: Sync          value: host time to issue (ps)
  copy,         // index: copy spec, flags: Sync             value: host time to issue (ps)
  host,         //                                           value: host time (ps)
  host_work,    // index: host spec: the host thread works until it is done
  record,       // event slot (frame, index) is recorded on `stream`
  wait,         // `stream` waits for the event
  host_wait,    // the host thread waits for the event
  host_sync,    // the host thread waits for everything issued so far   index: bits of the streams that it waits for; 0: all
  // memory
  alloc,        // tensor slot (frame, index), category      value: bytes
  alloc_once,   // the same of the program's slot `index`, whatever the frame, unless it is live: made where it is first needed
  free,         // tensor slot (frame, index)
  move,         // own slot `index` takes over the tensor of slot `value` of `frame`
  record_stream,// tensor slot is also used on `stream`: its free completes only when that stream has got there
                //                                           value: work that the block has given to `stream` so far
};

/// How work on a side stream is tied to the compute stream (bits).
enum Sync : std::uint8_t {
  kAfterCompute = 1,   // starts after what the compute stream has been given so far
  kComputeWaits = 2,   // later compute-stream work waits for it
  kMeets = 4,          // another micro-batch's pass may be computed meanwhile (Cut::meets); no instruction carries it
};

/// Which frame of the call an operand lives in.
enum class Frame : std::uint8_t { own, below, above, unit };

struct Instruction {
  Opcode op = Opcode::host;
  Stream stream = Stream::compute;
  Frame frame = Frame::own;
  std::uint8_t flags = 0;       // Sync bits, or the Category of an alloc
  std::uint32_t index = 0;      // spec or slot
  std::int64_t value = 0;       // picoseconds or bytes
  friend bool operator==(const Instruction&, const Instruction&) = default;
};
static_assert(sizeof(Instruction) == 16);

/// A collective as the program issues it. `bytes` as nccl-tests count them (see hwmodels/network/network.h).
struct CollectiveSpec {
  CollectiveKind kind = CollectiveKind::all_reduce;
  GroupAxis axis = GroupAxis::data;
  Bytes bytes;
  std::string name;
  TokenExchange tokens;  // with choices: expert dispatch of this rank's tokens, `bytes` in all; else a plain collective
  // Where members differ in what they move (all-to-all-v): as `bytes`, of the member that moves most; it ends for all when it
  // ends for that one. 0: members are equal.
  Bytes fullest;
  bool registered = false;   // its buffers are registered with NCCL (user buffers)
  bool host_waits = false;   // waits of a slow network hold the thread that issues it (part of its host time), not the device
  friend bool operator==(const CollectiveSpec&, const CollectiveSpec&) = default;
};

/// A point-to-point message between rank classes. The k-th send from a to b on a channel matches the k-th receive.
struct MessageSpec {
  std::uint16_t peer = 0;    // rank class on the other side
  std::uint8_t channel = 0;  // separate FIFO per direction: 0 activations, 1 gradients
  Bytes bytes;
  bool batched = true;       // goes over the communicator of all stages; false: over one of its two ranks (torch.distributed, unbatched isend)
  friend bool operator==(const MessageSpec&, const MessageSpec&) = default;
};

/// A copy between a rank's device and its host.
struct CopySpec {
  enum class Direction : std::uint8_t { host_to_device, device_to_host } direction = Direction::host_to_device;
  bool pinned = true;
  Bytes bytes;
  bool disk = false;         // to or from NVMe, through host memory
  int turns = 1;             // ranks that copy as much one after the other, of which this is one; each waits for all
  bool alone = false;        // no other GPU of the job copies meanwhile: one process runs layers on one GPU after the other
  friend bool operator==(const CopySpec&, const CopySpec&) = default;
};

/// Work of the host's CPUs for one rank: bytes that it moves through DRAM, reads from and writes to NVMe.
struct HostSpec {
  std::string name;
  Bytes dram, disk_read, disk_write;
  bool pipelined = false;    // reading, computing and writing overlap
  int threads = 0;           // of the rank's process; 0: one per core of the node
  Bytes fresh{};             // of new tensors, whose pages the operating system gives first
  Bytes pinned{};            // of `dram`, in pinned memory
  friend bool operator==(const HostSpec&, const HostSpec&) = default;
};

/// Bytes that one rank keeps outside its GPU.
struct HostBytes {
  std::int64_t pinned = 0, pageable = 0, nvme = 0;
};

/// What a call is doing: names for traces and for the attribution of time.
enum class Phase : std::uint8_t { setup, forward, backward, weight_gradient, recompute, gradient_reduction, parameter_gather, optimizer, communication, input, count_ };
std::string_view name_of(Phase p);

/// A place in a block where compute begins to wait for communication: what comes before it, in either list. Another
/// block can run there (strategies/block_segments.h).
struct Cut {
  std::uint32_t timing = 0, memory = 0;
  bool meets = false;   // behind an exchange of tokens, where frameworks that merge two passes change from one to the other
  friend bool operator==(const Cut&, const Cut&) = default;
};

/// Timing and memory instructions are kept apart: time never depends on memory, and memory on time only through
/// record_stream. Both are in host order.
struct Block {
  std::string name;
  std::vector<Instruction> timing;
  std::vector<Instruction> memory;
  std::vector<std::string> slot_names;   // of the own frame, for reports; may be shorter than `slots`
  std::uint32_t slots = 0;               // size of the own frame
  std::vector<Cut> cuts;
  friend bool operator==(const Block&, const Block&) = default;
};

/// What the block is, for people: its name without the sizes behind it, which tell it from others of the kind.
std::string_view title_of(const Block& block);

constexpr std::uint32_t kNoFrame = 0xffffffff;

struct Call {
  std::uint32_t block = 0;
  std::array<std::uint32_t, 4> frames{kNoFrame, kNoFrame, kNoFrame, kNoFrame};  // base slots, by Frame
  Phase phase = Phase::forward;
  std::int16_t layer = -1;        // global layer number, -1: none
  std::int32_t micro_batch = -1;
  bool first_step_only = false;   // what it allocates stays: optimizer states
};

struct Program {
  std::vector<Call> setup;   // once: parameters, buffers, optimizer states
  std::vector<Call> step;    // one training step; repeated
  std::uint32_t slots = 0;   // tensors and events, all frames together
};

/// Ranks that run the same program in the same surroundings. One of them is simulated.
struct RankClass {
  std::string name;                // "stage 0"
  int representative = 0;          // a global rank
  int ranks = 1;                   // how many there are
  Program program;
  std::array<GroupShape, kGroupAxes> groups{};   // shape of each process group that this class is in
  std::array<std::vector<std::uint16_t>, kGroupAxes> partners{};  // other classes in the group, if any
  HostBytes host;                  // highest during a step
  double expert_load = 1;          // slots of its experts over the mean of the ranks with the same layers
  std::int64_t unified = 0;        // bytes of CUDA's unified memory: on the device while there is room, else on the host
  std::vector<std::uint16_t> stage_peers_other_node;              // classes whose messages cross nodes
};

struct Plan {
  std::vector<model::KernelSpec> kernels;
  std::vector<CollectiveSpec> collectives;
  std::vector<MessageSpec> messages;
  std::vector<CopySpec> copies;
  std::vector<HostSpec> host_works;
  std::vector<Block> blocks;
  std::vector<RankClass> classes;
  std::vector<std::uint16_t> class_of_rank;   // empty: as many classes as pipeline stages or ranks

  /// Timing and memory instructions that one step of all classes executes.
  std::int64_t instructions_per_step() const;
};

}  // namespace rehearse::plan
