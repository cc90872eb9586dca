// A pipeline schedule: what each stage's rank computes, sends and receives in one training step, in host
// order. Leaves out what a forward or backward consists of (stage writer), message sizes and every time but
// unit times.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/catalog.h"
#include "strategies/pipeline/pass_times.h"

namespace rehearse::strategies {

enum class ActionKind : std::uint8_t {
  forward,
  backward,         // whole: input and weight gradients
  backward_input,   // input gradient only; lets the previous stage go on
  backward_weight,  // the weight gradient left over by backward_input
  overlapped,  // a forward of (chunk, micro_batch) and a whole backward of (under_chunk, under_micro_batch)
               // at once
  send_forward,
  recv_forward,
  send_backward,
  recv_backward,
  unshard,
  reshard,
  reduce_gradient,  // FSDP's actions on a whole chunk (micro_batch is -1)
};
std::string_view name_of(ActionKind kind);
bool is_compute(ActionKind kind);
bool is_message(ActionKind kind);

/// When computation waits for a message (for all messages of its batch).
enum class Wait : std::uint8_t {
  at_issue,            // blocking: nothing later is computed before the whole batch is done
  at_use,              // receives: just before the computation that needs it; sends: never
  after_next_compute,  // sends whose buffer is taken back one computation later
};

/// Messages are named after the computation at their own end: send_forward (chunk, mb) follows forward
/// (chunk, mb); recv_forward (chunk, mb) comes before forward (chunk, mb), and the same for backward.
struct Action {
  ActionKind kind = ActionKind::forward;
  int chunk = 0;  // local model chunk, 0 .. chunks of this rank - 1
  int micro_batch = 0;
  int under_chunk = -1, under_micro_batch = -1;  // `overlapped` only
  int batch =
      -1;  // messages with the same number are issued together (batch_isend_irecv); adjacent in the list
  Wait wait = Wait::at_use;
  friend bool operator==(const Action&, const Action&) = default;
};

/// Which stage of the model a chunk is. Bidirectional schedules hold the model twice: `replica` says which
/// copy.
struct Place {
  int stage = 0;
  int replica = 0;
  friend bool operator==(const Place&, const Place&) = default;
};

/// What the user can choose. `stages` are ranks (p), `chunks` model chunks per rank (v), `micro_batches` per
/// step (m).
struct PipelineShape {
  int stages = 1;
  int micro_batches = 1;
  int chunks = 1;
  int group_size = 0;                    // Megatron's microbatch_group_size_per_vp_stage; 0: `stages`
  bool overlap_messages = true;          // Megatron's overlap_p2p_comm (interleaved only)
  bool overlap_warmup_flush = false;     // Megatron's overlap_p2p_comm_warmup_flush
  bool overlap_expert_messages = false;  // combined 1F1B for MoE: one more warm-up forward
  PassTimes times = {};                  // schedules that are searched for (zb-1p, zb-2p)
};

/// How messages of different batches may overtake each other.
enum class Channels : std::uint8_t {
  per_rank,       // one communicator: a rank's batches run one after the other (PyTorch batched, Megatron
                  // batch_p2p_comm)
  per_direction,  // forward and backward messages between two ranks are independent queues (Megatron
                  // overlap_p2p_comm)
};

struct PipelineProgram {
  std::string name;
  int micro_batches = 0;
  int virtual_stages = 0;  // stages that one micro-batch passes
  int replicas = 1;        // copies of the model; micro-batches are dealt out in equal runs
  int rounds = 1;          // times that the schedule runs, one after the other, in equal parts of the micro-batches
  std::vector<std::vector<Place>> placement;  // [rank][chunk]
  std::vector<std::vector<Action>> ranks;     // [rank], in host order
  Channels channels = Channels::per_rank;

  int stages() const { return static_cast<int>(ranks.size()); }
  int chunks(int rank) const { return static_cast<int>(placement[rank].size()); }
  int replica_of(int micro_batch) const { return micro_batch % (micro_batches / rounds) * replicas / (micro_batches / rounds); }
  bool is_first(int rank, int chunk) const { return placement[rank][chunk].stage == 0; }
  bool is_last(int rank, int chunk) const { return placement[rank][chunk].stage == virtual_stages - 1; }

  struct Location {
    int rank = -1;
    int chunk = -1;
    friend bool operator==(const Location&, const Location&) = default;
  };
  /// Where a stage is; rank -1 beyond the ends of the model.
  Location locate(Place place) const;
  Location next(int rank, int chunk) const {
    return locate({placement[rank][chunk].stage + 1, placement[rank][chunk].replica});
  }
  Location previous(int rank, int chunk) const {
    return locate({placement[rank][chunk].stage - 1, placement[rank][chunk].replica});
  }
  /// The rank on the other side of a message; the rank itself where two neighbouring stages share a rank.
  int peer(int rank, const Action& message) const;
};

/// A program with no actions yet. Looped: chunk k of rank r is stage k*p + r. V: chunks go down the ranks and
/// back up.
PipelineProgram empty_looped(std::string name, const PipelineShape& shape, int chunks);
PipelineProgram empty_v(std::string name, const PipelineShape& shape);

/// The program `rounds` times over, each time with the next micro-batches: gradients are accumulated around a schedule that
/// drains in between. FSDP reduces them in the last round (NeMo AutoModel, components/moe/fsdp_mixin.py; torchtitan reduces in each,
/// which is not simulated). Precondition: rounds >= 1.
PipelineProgram in_rounds(PipelineProgram program, int rounds);

/// A schedule of the catalog. Both functions are pure.
struct PipelineSchedule {
  /// Precondition: problems(shape) is empty.
  PipelineProgram (*make)(const PipelineShape& shape);
  /// Why the schedule cannot run with this shape, with the fix, in the user's words.
  std::vector<std::string> (*problems)(const PipelineShape& shape);
  /// Chunks per rank that the schedule needs; 0: as the user says.
  int fixed_chunks;
  /// torch.distributed.pipelining runs it as a list of actions, FSDP's among them (_PipelineScheduleRuntime).
  bool pytorch_runtime = false;
  /// Its order depends on how long the passes take (PipelineShape::times).
  bool searched = false;
};

PipelineProgram make_naive(const PipelineShape& shape);
PipelineProgram make_gpipe(const PipelineShape& shape);
PipelineProgram make_one_forward_one_backward(const PipelineShape& shape);
PipelineProgram make_pytorch_one_forward_one_backward(const PipelineShape& shape);
PipelineProgram make_interleaved(const PipelineShape& shape);
PipelineProgram make_pytorch_interleaved(const PipelineShape& shape);
PipelineProgram make_pytorch_interleaved_zero_bubble(const PipelineShape& shape);
PipelineProgram make_breadth_first(const PipelineShape& shape);
PipelineProgram make_zero_bubble_h1(const PipelineShape& shape);
PipelineProgram make_zero_bubble_h2(const PipelineShape& shape);
PipelineProgram make_zero_bubble_1p(const PipelineShape& shape);
PipelineProgram make_zero_bubble_2p(const PipelineShape& shape);
PipelineProgram make_zero_bubble_v(const PipelineShape& shape);
PipelineProgram make_dualpipe(const PipelineShape& shape);
PipelineProgram make_dualpipe_v(const PipelineShape& shape);

}  // namespace rehearse::strategies
