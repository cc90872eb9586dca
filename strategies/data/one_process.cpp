// torch.nn.DataParallel: one process keeps the model on the first GPU of a node. Every forward pass broadcasts it to the others
// (replicate), every backward pass sums their gradients there; only the first GPU has an optimizer.
// Leaves out inputs and outputs (strategies/one_process_plan.cpp) and the threads' launches (strategies/unit_blocks.cpp).
// Source: torch/nn/parallel/{data_parallel,replicate,comm,_functions}.py, torch/csrc/cuda/comm.cpp.
#include <algorithm>

#include "strategies/data/families.h"

namespace rehearse::strategies {

using model::KernelKind;
using plan::Category;
using plan::GroupAxis;
using plan::Phase;
using plan::Stream;

namespace {

// Small tensors travel together (comm.broadcast_coalesced, comm.reduce_add_coalesced: buffer_size).
constexpr std::int64_t kBuffer = 10'485'760;
// Python's copy of one module with one parameter for one GPU. Measured: the loops of replicate.py on a model with 11 modules per
// layer take 15 to 17 us per module and replica, for 2 to 8 replicas and 16 to 64 layers (torch 2.13, one core of a cloud CPU).
constexpr Duration kReplicateHost{16'000'000};

/// Parameters or gradients that are sent as one.
struct Coalesced {
  std::int64_t bytes = 0;
  int tensors = 0;
  std::size_t lowest_unit = 0;   // backward leaves it last
  bool table_only = false;       // an embedding's: its backward does not read it
};

class OneProcess final : public DataParallelWriter {
 public:
  explicit OneProcess(Stage& stage) : DataParallelWriter(stage), first_gpu_(stage.rank_class.representative == 0) {}

  void setup() override {
    sent_ = coalesce(false);
    reduced_ = coalesce(true);
    for (const Unit& u : stage_.units) modules_ += static_cast<std::int64_t>(u.tape->weights.size());
    if (first_gpu_) {
      persistent("parameters", stage_.parameter_bytes(stored_bytes()), Category::parameter);
      keep_states(share(false, stored_bytes()));
    }
    replica_ = stage_.frames.acquire(kSlots * static_cast<std::uint32_t>(sent_.size()));
    sums_ = stage_.frames.acquire(2 * kSlots * static_cast<std::uint32_t>(reduced_.size()));
  }

  WeightGradient gradient_mode(bool) const override { return WeightGradient::first; }
  std::int64_t gradient_element_bytes() const override { return stored_bytes(); }
  std::int64_t main_gradient_element_bytes() const override { return stored_bytes(); }

  void begin_step() override { passes_ = 0; }

  /// replicate(): the first GPU sends its own tensors, the others make room for them.
  void unshard(std::size_t, std::size_t) override {
    const std::int64_t ids = stage_.strategy.tokens() * 8 * stage_.sizes.data;
    stage_.call("scatter inputs", Phase::input, nullptr, [&](plan::BlockWriter& w) { exchange(w, CollectiveKind::scatter, gathers_loss() ? 2 * ids : ids, "inputs"); });
    stage_.call("replicate modules", Phase::parameter_gather, nullptr, [&](plan::BlockWriter& w) { w.host(kReplicateHost * modules_ * stage_.sizes.data); });
    for (std::size_t i = 0; i < sent_.size(); ++i) {
      const Coalesced& c = sent_[i];
      call("broadcast parameters " + std::to_string(c.bytes) + (c.tensors > 1 ? " coalesced" : ""), Phase::parameter_gather, at(replica_, i), [&](plan::BlockWriter& w) {
        if (!first_gpu_) w.alloc(0, c.bytes, Category::parameter);
        if (first_gpu_ && c.tensors > 1) flatten(w, c.bytes);
        exchange(w, CollectiveKind::broadcast, c.bytes, "parameter broadcast");
        if (first_gpu_ && c.tensors > 1) w.free(kFlat);
      });
    }
  }

  void after_forward(std::size_t unit, int) override {
    for (std::size_t i = 0; i < sent_.size(); ++i) {
      const bool goes = evaluates() ? unit + 1 == stage_.units.size() : unit == sent_[i].lowest_unit && sent_[i].table_only;
      if (goes) drop_replica(i);
    }
    if (gathers_loss() && unit + 1 == stage_.units.size()) exchange_losses(CollectiveKind::gather);
  }

  void before_backward(std::size_t unit, int) override {
    if (gathers_loss() && unit + 1 == stage_.units.size()) exchange_losses(CollectiveKind::scatter);
  }

  void after_backward(std::size_t unit, int, bool, bool) override {
    for (std::size_t i = 0; i < sent_.size(); ++i)
      if (unit == sent_[i].lowest_unit && !sent_[i].table_only) drop_replica(i);
  }

  /// Broadcast's backward is one function of all parameters: nothing moves before all gradients of all replicas are there.
  void end_chunk(std::size_t, std::size_t) override {
    const bool first = passes_++ == 0;
    for (std::size_t i = 0; i < reduced_.size(); ++i) {
      const Coalesced& c = reduced_[i];
      const std::size_t sum = first ? i : reduced_.size() + i;
      call("reduce gradients " + std::to_string(c.bytes) + (c.tensors > 1 ? " coalesced" : ""), Phase::gradient_reduction, at(sums_, sum), [&](plan::BlockWriter& w) {
        if (c.tensors > 1) flatten(w, c.bytes);
        if (first_gpu_) w.alloc(0, c.bytes, Category::gradient);
        exchange(w, CollectiveKind::reduce, c.bytes, "gradient reduction");
        if (c.tensors > 1) w.free(kFlat);
      });
    }
    free_gradients(Phase::gradient_reduction);
    if (first || !first_gpu_) return;
    for (std::size_t i = 0; i < reduced_.size(); ++i)
      call("add gradients " + std::to_string(reduced_[i].bytes), Phase::gradient_reduction, at(sums_, reduced_.size() + i), [&](plan::BlockWriter& w) {
        w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = 2 * reduced_[i].bytes, .bytes_written = reduced_[i].bytes, .name = "add gradients"}), host());
        w.free(0);
      });
  }

  void end_step() override {
    if (!first_gpu_) return;
    const Share mine = share(false, stored_bytes());
    clip(mine, false);
    update(mine);
    for (std::size_t i = 0; i < reduced_.size(); ++i) call("free gradients", Phase::optimizer, at(sums_, i), [](plan::BlockWriter& w) { w.free(0); });
  }

 private:
  static constexpr std::uint32_t kFlat = 1, kSlots = 2;   // of a block's frame: the tensor that stays, small ones laid together

  /// The model's parameters in order: one by one where they are large, together where they are small. `gradients`: only
  /// those that are trained.
  std::vector<Coalesced> coalesce(bool gradients) const {
    std::vector<Coalesced> out;
    std::array<Coalesced, 2> open{};   // by format
    auto close = [&](Coalesced& c) {
      if (c.tensors > 0) out.push_back(c);
      c = {};
    };
    for (std::size_t u = 0; u < stage_.units.size(); ++u)
      for (const Weight& w : stage_.units[u].tape->weights) {
        if (gradients ? !w.trainable || w.gradient_elsewhere : w.parameter_elsewhere) continue;
        const std::int64_t bytes = w.elements * (w.wide_bytes > 0 ? w.wide_bytes : stored_bytes());
        Coalesced& c = open[w.wide_bytes > 0];
        // Sums close a buffer before it gets too large (torch._utils._take_tensors), broadcasts once it is (take_tensors in C++).
        if (gradients && c.bytes + bytes > kBuffer) close(c);
        if (c.tensors == 0) c.lowest_unit = u;
        c.table_only = c.tensors == 0 && u == 0 && w.columns > 1 && stage_.units[u].layer < 0 && !shares_table();
        c.bytes += bytes;
        ++c.tensors;
        if (!gradients && c.bytes >= kBuffer) close(c);
      }
    for (Coalesced& c : open) close(c);
    return out;
  }

  /// The output layer reads the embedding's table.
  bool shares_table() const {
    for (const Unit& u : stage_.units)
      for (const Weight& w : u.tape->weights)
        if (w.parameter_elsewhere) return true;
    return false;
  }

  static std::uint32_t at(std::uint32_t frame, std::size_t i) { return frame + kSlots * static_cast<std::uint32_t>(i); }

  void flatten(plan::BlockWriter& w, std::int64_t bytes) {
    w.alloc(kFlat, bytes, Category::temporary);
    w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = bytes, .bytes_written = bytes, .name = "flatten"}), host());
  }

  void exchange(plan::BlockWriter& w, CollectiveKind kind, std::int64_t bytes, const char* name) {
    w.collective(builder().collective({kind, GroupAxis::data, Bytes{bytes}, name}), Stream::data_gather, plan::kAfterCompute | plan::kComputeWaits, profile().collective_host);
  }

  bool gathers_loss() const { return stage_.strategy.data_parallel.gather == Gathered::loss; }
  void exchange_losses(CollectiveKind kind) {
    const std::string name = kind == CollectiveKind::gather ? "losses" : "loss gradients";
    stage_.call("exchange " + name, Phase::communication, nullptr, [&](plan::BlockWriter& w) { exchange(w, kind, 4 * stage_.sizes.data, name.c_str()); });
  }

  void drop_replica(std::size_t i) {
    if (first_gpu_) return;
    call("free replica", Phase::backward, at(replica_, i), [](plan::BlockWriter& w) { w.free(0); });
  }

  /// A call whose own frame begins at a slot: one block serves every tensor of its size.
  template <typename Write>
  void call(const std::string& key, Phase phase, std::uint32_t slot, Write write) {
    plan::Call c{.block = stage_.block(key, write), .phase = phase};
    if (c.block == plan::kNoFrame) return;
    c.frames[static_cast<std::size_t>(plan::Frame::own)] = slot;
    stage_.append(c);
  }

  bool first_gpu_;
  std::vector<Coalesced> sent_, reduced_;
  std::int64_t modules_ = 0;
  std::uint32_t replica_ = 0, sums_ = 0;   // frames: tensors of a replica; sums of this step, and of this pass
  int passes_ = 0;
};

}  // namespace

std::unique_ptr<DataParallelWriter> make_one_process(Stage& stage) { return std::make_unique<OneProcess>(stage); }

}  // namespace rehearse::strategies
