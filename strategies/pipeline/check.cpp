#include "strategies/pipeline/check.h"

#include <fmt/format.h>

#include "strategies/pipeline/matching.h"
#include "strategies/pipeline/unit_time.h"

namespace rehearse::strategies {
namespace {

/// Where in a rank's list each thing happens to one (chunk, micro-batch); -1: it does not.
struct Life {
  int forward = -1, backward = -1, weight = -1;  // `weight` only where it is apart from the input gradient
  int send_forward = -1, recv_forward = -1, send_backward = -1, recv_backward = -1;
  bool split = false;
};

class Check {
 public:
  Check(const PipelineProgram& program, std::size_t limit) : program_(program), limit_(limit) {}

  std::vector<std::string> run(bool with_messages) {
    if (!check_placement()) return std::move(out_);
    for (int r = 0; r < program_.stages(); ++r) lives_.push_back(read(r));
    if (!out_.empty()) return std::move(out_);
    for (int r = 0; r < program_.stages(); ++r)
      for (int chunk = 0; chunk < program_.chunks(r); ++chunk)
        for (int mb = 0; mb < program_.micro_batches; ++mb) check_life(r, chunk, mb, with_messages);
    if (!with_messages) return std::move(out_);
    for (const std::string& problem : match_messages(program_).problems) say(problem);
    if (out_.empty())
      for (const std::string& place : run_in_unit_time(program_).stuck) say("deadlock, waiting at " + place);
    return std::move(out_);
  }

 private:
  void say(std::string text) {
    if (out_.size() < limit_) out_.push_back(std::move(text));
  }

  bool check_placement() {
    for (int replica = 0; replica < program_.replicas; ++replica)
      for (int stage = 0; stage < program_.virtual_stages; ++stage)
        if (program_.locate({stage, replica}).rank < 0) say(fmt::format("stage {} is on no rank", stage));
    return out_.empty();
  }

  void note(int& slot, int rank, int index) {
    if (slot >= 0) say(describe(program_, rank, index) + " comes a second time");
    slot = index;
  }

  std::vector<Life> read(int rank) {
    std::vector<Life> lives(static_cast<std::size_t>(program_.chunks(rank)) * program_.micro_batches);
    const auto& actions = program_.ranks[rank];
    for (int i = 0; i < static_cast<int>(actions.size()); ++i) {
      const Action& a = actions[i];
      const auto known = [&](int chunk, int mb) {
        return chunk >= 0 && chunk < program_.chunks(rank) && mb >= 0 && mb < program_.micro_batches;
      };
      if (!is_compute(a.kind) && !is_message(a.kind)) continue;
      if (!known(a.chunk, a.micro_batch) ||
          (a.kind == ActionKind::overlapped && !known(a.under_chunk, a.under_micro_batch))) {
        say(describe(program_, rank, i) + " does not exist");
        continue;
      }
      Life& life = lives[static_cast<std::size_t>(a.chunk) * program_.micro_batches + a.micro_batch];
      switch (a.kind) {
        case ActionKind::forward:
          note(life.forward, rank, i);
          break;
        case ActionKind::backward:
          note(life.backward, rank, i);
          break;
        case ActionKind::backward_input:
          note(life.backward, rank, i), life.split = true;
          break;
        case ActionKind::backward_weight:
          note(life.weight, rank, i);
          break;
        case ActionKind::overlapped:
          note(life.forward, rank, i);
          note(lives[static_cast<std::size_t>(a.under_chunk) * program_.micro_batches + a.under_micro_batch]
                   .backward,
               rank, i);
          break;
        case ActionKind::send_forward:
          note(life.send_forward, rank, i);
          break;
        case ActionKind::recv_forward:
          note(life.recv_forward, rank, i);
          break;
        case ActionKind::send_backward:
          note(life.send_backward, rank, i);
          break;
        case ActionKind::recv_backward:
          note(life.recv_backward, rank, i);
          break;
        default:
          break;
      }
    }
    return lives;
  }

  const Life& life(int rank, int chunk, int mb) const {
    return lives_[rank][static_cast<std::size_t>(chunk) * program_.micro_batches + mb];
  }

  void check_life(int r, int chunk, int mb, bool with_messages) {
    const Life& l = life(r, chunk, mb);
    const std::string what = fmt::format("rank {} chunk {} micro-batch {}", r, chunk, mb);
    if (program_.replica_of(mb) != program_.placement[r][chunk].replica) {
      if (l.forward >= 0 || l.backward >= 0) say(what + ": belongs to the other copy of the model");
      return;
    }
    if (l.forward < 0) return say(what + ": no forward");
    if (l.backward < 0) return say(what + ": no backward");
    if (l.split != (l.weight >= 0))
      return say(what + (l.split ? ": no weight gradient" : ": weight gradient twice"));
    if (l.backward <= l.forward || (l.split && l.weight <= l.backward))
      return say(what + ": backward before forward");
    if (!with_messages) return;
    check_flow(what, r, program_.previous(r, chunk), mb, true, l.forward, l.recv_forward, l.backward,
               l.send_backward);
    check_flow(what, r, program_.next(r, chunk), mb, false, l.backward, l.recv_backward, l.forward,
               l.send_forward);
  }

  /// The neighbour `from` makes what `reader` reads and reads what `writer` makes.
  void check_flow(const std::string& what, int r, PipelineProgram::Location from, int mb, bool is_forward,
                  int reader, int receive, int writer, int send) {
    const char* tensor = is_forward ? "activation" : "gradient";
    const char* sent = is_forward ? "gradient" : "activation";
    if (from.rank < 0 || from.rank == r) {
      if (receive >= 0 || send >= 0) return say(what + ": message to itself or beyond the model");
      if (from.rank < 0) return;
      const Life& other = life(from.rank, from.chunk, mb);
      if ((is_forward ? other.forward : other.backward) >= reader)
        say(fmt::format("{}: {} is used before it is made", what, tensor));
      return;
    }
    if (receive < 0) say(fmt::format("{}: {} is never received", what, tensor));
    if (receive > reader) say(fmt::format("{}: {} is received after its use", what, tensor));
    if (send < 0) say(fmt::format("{}: {} is never sent", what, sent));
    if (send >= 0 && send < writer) say(fmt::format("{}: {} is sent before it is made", what, sent));
  }

  const PipelineProgram& program_;
  std::size_t limit_;
  std::vector<std::vector<Life>> lives_;
  std::vector<std::string> out_;
};

}  // namespace

std::vector<std::string> problems_of(const PipelineProgram& program, std::size_t limit) {
  return Check(program, limit).run(true);
}

std::vector<std::string> problems_of_computations(const PipelineProgram& program, std::size_t limit) {
  return Check(program, limit).run(false);
}

}  // namespace rehearse::strategies
