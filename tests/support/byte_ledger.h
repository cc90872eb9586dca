// Counts the bytes that a rank class's program holds, as requested, with no allocator between: a second reader of the
// memory instructions, for comparison with PyTorch and with formulas.
// Leaves out time and, if asked, what kernels borrow while they run.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/plan/plan.h"

namespace rehearse::test_support {

using Categories = std::array<std::int64_t, plan::kCategories>;

struct StepBytes {
  std::int64_t persistent = 0;       // after setup, optimizer states included
  std::int64_t after_forward = 0;    // above `persistent`, as are the next three
  std::int64_t forward_peak = 0;
  std::int64_t step_peak = 0;        // up to the end of backward
  std::int64_t after_backward = 0;
  std::int64_t after_step = 0;       // all live bytes
  Categories setup{};                // after setup
  Categories before_update{};        // after backward and gradient reduction
  std::vector<std::string> mistakes; // a live slot allocated again, a tensor moved onto a live one
};

class ByteLedger {
 public:
  /// `workspaces`: count what kernels borrow.
  ByteLedger(const plan::Plan& plan, std::size_t rank_class, bool workspaces = false)
      : plan_(plan), program_(plan.classes[rank_class].program), workspaces_(workspaces), slots_(program_.slots) {
    for (const plan::Call& c : program_.setup) run(c);
    for (const plan::Call& c : program_.step)
      if (c.first_step_only) run(c);   // as after a first step
    for (const plan::Call& c : program_.step)
      for (const plan::Instruction& i : plan_.blocks[c.block].memory)
        if (i.op == plan::Opcode::alloc_once) make_once(i);
    setup_ = live_;
    persistent_ = total_;
  }

  /// Runs one more step; the first is over.
  StepBytes step() {
    StepBytes out;
    out.persistent = persistent_;
    out.setup = setup_;
    peak_ = total_;
    bool updated = false, backward = false;
    for (const plan::Call& c : program_.step) {
      if (c.first_step_only) continue;
      if (c.phase == plan::Phase::optimizer && backward && !updated) {
        updated = true;
        out.before_update = live_;
      }
      run(c);
      if (c.phase == plan::Phase::forward && !backward) {
        out.after_forward = total_ - persistent_;
        out.forward_peak = peak_ - persistent_;
      }
      if (c.phase == plan::Phase::backward || c.phase == plan::Phase::weight_gradient) {
        backward = true;
        out.step_peak = peak_ - persistent_;
        out.after_backward = total_ - persistent_;
      }
    }
    out.after_step = total_;
    out.mistakes = mistakes_;
    return out;
  }

  std::int64_t total() const { return total_; }
  const Categories& live() const { return live_; }

 private:
  struct Slot {
    std::int64_t bytes = 0;
    std::uint8_t category = 0;
  };

  void make_once(const plan::Instruction& i) {
    Slot& slot = slots_.at(i.index);
    if (!workspaces_ || slot.bytes != 0) return;
    slot = {i.value, i.flags};
    total_ += i.value;
    live_[i.flags] += i.value;
  }

  /// From a slot of the frame that is named to one of the own frame.
  void move(const plan::Block& block, const plan::Call& call, const plan::Instruction& i) {
    Slot& from = slots_.at(call.frames[static_cast<std::size_t>(i.frame)] + static_cast<std::uint32_t>(i.value));
    Slot& to = slots_.at(call.frames[static_cast<std::size_t>(plan::Frame::own)] + i.index);
    if (&from == &to) return;
    if (to.bytes != 0) mistakes_.push_back(block.name + ": moved onto a live tensor");
    to = from;
    from = {};
  }

  void run(const plan::Call& call) {
    const plan::Block& block = plan_.blocks[call.block];
    for (const plan::Instruction& i : block.memory) {
      if (i.op == plan::Opcode::alloc_once) continue;
      if (i.op == plan::Opcode::move) {
        move(block, call, i);
        continue;
      }
      Slot& slot = slots_.at(call.frames[static_cast<std::size_t>(i.frame)] + i.index);
      if (i.op == plan::Opcode::alloc) {
        const bool counted = workspaces_ || i.flags != static_cast<std::uint8_t>(plan::Category::workspace);
        if (i.value == 0 || !counted) continue;
        if (slot.bytes != 0) mistakes_.push_back(block.name + ": slot " + std::to_string(i.index) + " is allocated twice");
        slot = {i.value, i.flags};
        total_ += i.value;
        live_[i.flags] += i.value;
        peak_ = std::max(peak_, total_);
      } else if (i.op == plan::Opcode::free) {
        total_ -= slot.bytes;
        live_[slot.category] -= slot.bytes;
        slot = {};
      }
    }
  }

  const plan::Plan& plan_;
  const plan::Program& program_;
  bool workspaces_;
  std::vector<Slot> slots_;
  Categories live_{}, setup_{};
  std::int64_t total_ = 0, persistent_ = 0, peak_ = 0;
  std::vector<std::string> mistakes_;
};

}  // namespace rehearse::test_support
