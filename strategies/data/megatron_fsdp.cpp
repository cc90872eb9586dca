// Megatron-FSDP (Megatron-Core distributed/fsdp, megatron_fsdp.py and param_and_grad_buffer.py): parameters, gradients and
// optimizer states in shards that live on. Leaves out pipeline stages and offloading, which strategies/rules.cpp refuses.
//
// A layer is gathered straight from its shard into a bucket. What belongs to no layer (embedding, last norm, head) is gathered
// at its first use and stays for the step. Gradients lie in a bucket of the format in which they are reduced: Transformer
// Engine's products write into it, other gradients are copied there when the layer's backward is over. Reduced shards are
// added to main gradients that live on.
// Layers are gathered up to half a billion elements ahead of their use, and buckets under reduction are let go when they hold
// more than a billion elements, or when the micro-batch's backward is over; of large layers, one ahead and two under reduction.
// Where parameters are whole (optim_grads; reshard_after_forward false) they lie in one buffer, into which each step gathers them once.
// With double buffers (FixedPoolAllocator), the layers of the most frequent size have two lasting buffers for weights and two for
// gradients: one layer is gathered ahead, and one bucket is under reduction while the next is written.
#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "strategies/data/families.h"
#include "strategies/data/sharded_writer.h"

namespace rehearse::strategies {

using model::KernelKind;
using plan::Category;
using plan::Frame;
using plan::Phase;
using plan::Stream;

namespace {

class MegatronFsdp final : public ShardedWriter {
 public:
  explicit MegatronFsdp(Stage& stage) : ShardedWriter(stage, stage.profile.gradient) {
    std::map<std::string, std::vector<std::size_t>> sizes;   // layers of each
    std::int64_t layers = 0, elements = 0;
    for (std::size_t u = 0; u < stage.units.size(); ++u) {
      if (stays(u)) continue;
      ++layers;
      elements += stage.units[u].tape->elements();
      sizes[key("", stage.units[u])].push_back(u);
    }
    if (layers > 0) most_ = std::max(kLeast, 2 * (elements / layers));
    const DataParallel& dp = stage.strategy.data_parallel;
    if (sizes.empty() || !(dp.double_buffer || dp.registered_buffers)) return;
    const auto most = std::max_element(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    buffered_.resize(stage.units.size());
    for (const std::size_t u : most->second) buffered_[u] = true;
  }

  void setup() override {
    if (doubles()) {
      const Unit& u = stage_.units[static_cast<std::size_t>(std::find(buffered_.begin(), buffered_.end(), true) - buffered_.begin())];
      const std::int64_t bucket = u.tape->trainable_elements() * reduce_bytes_;
      persistent("gathered layers", 2 * gathered_bytes(u), Category::communication);
      // What products write into is allocated with them.
      if (!evaluates()) persistent("gradients under reduction", writes_into_bucket() ? bucket : 2 * bucket, Category::communication);
    }
    if (reshard_) persistent("parameter shards", parameter_shards(), Category::parameter);
    else persistent("parameters", stage_.parameter_bytes(stored_bytes()), Category::parameter);
    persistent("gradient shards", my_share().gradients, Category::gradient);
    keep_states(my_share());
  }

  WeightGradient gradient_mode(bool) const override { return WeightGradient::first; }
  std::int64_t gradient_element_bytes() const override { return writes_into_bucket() ? reduce_bytes_ : parameter_bytes_; }

  void begin_step() override {
    ShardedWriter::begin_step();
    const std::int64_t bytes = my_share().gradients;
    if (evaluates() || bytes == 0) return;
    stage_.call("zero gradients", Phase::optimizer, nullptr, [&](plan::BlockWriter& w) {
      w.kernel(builder().kernel({.kind = KernelKind::memset, .dtype = DType::fp32, .bytes_written = bytes, .name = "zero gradients"}), host());
    });
  }

  void before_forward(std::size_t unit, int) override {
    hooks(unit, Phase::forward, profile().unit_host);
    gather(unit);
    std::int64_t ahead = 0;
    for (std::size_t v = unit + 1; v < stage_.units.size() && ahead < most_ahead(unit); ++v) ahead += gather(v);
    wait_gather(unit, Phase::forward);
  }
  void after_forward(std::size_t unit, int micro_batch) override {
    if (!stays(unit)) ShardedWriter::after_forward(unit, micro_batch);
  }
  void before_backward(std::size_t unit, int) override {
    hooks(unit, Phase::backward, profile().unit_backward_host);
    gather(unit);
    wait_gather(unit, Phase::backward);
    if (stage_.units[unit].layer < 0) return;   // only layers have the hook that gathers ahead
    std::int64_t ahead = 0;
    for (std::size_t v = unit; v > 0 && ahead < most_ahead(unit); --v) ahead += gather(v - 1);
  }
  void after_backward(std::size_t unit, int, bool, bool) override {
    if (!stays(unit) && reshard_) release(unit, Phase::backward);
    reduce(unit);
    if (unit == 0) free_reduced(0);
  }

  void end_evaluation() override {
    if (reshard_) ShardedWriter::end_evaluation();
    else std::fill(kept_.begin(), kept_.end(), false);
  }

  void end_step() override {
    stage_.call("wait gradients", Phase::gradient_reduction, nullptr, [](plan::BlockWriter& w) { wait_for_reductions(w); });
    end_evaluation();
    clip(my_share(), true);
    update(my_share());
  }

 private:
  // megatron_fsdp.py: suggested_communication_unit_size is two layers, and at least 1e9 elements; half of it is for gathering.
  static constexpr std::int64_t kLeast = 1'000'000'000;
  /// Elements gathered ahead after which no more are. With double buffers one layer, and none from outside the layers (param_and_grad_buffer.py, need_skip_prefetch).
  std::int64_t most_ahead(std::size_t unit) const { return !doubles() ? most_ / 2 : stays(unit) ? 0 : 1; }
  bool doubles() const { return !buffered_.empty(); }
  bool buffered(std::size_t index) const { return doubles() && buffered_[index]; }

  /// Bytes of an element of the main gradients.
  std::int64_t main_bytes() const { return bits(profile().gradient) / 8; }
  Share my_share() const { return share(true, main_bytes()); }
  bool writes_into_bucket() const { return profile().fused_gradient_accumulation; }
  /// Gathered once, for the whole step.
  bool stays(std::size_t index) const { return stage_.units[index].layer < 0; }

  /// Python around a layer's pass.
  void hooks(std::size_t index, Phase phase, Duration each) {
    if (stays(index) || each == Duration{}) return;
    stage_.call("hooks of a unit " + std::to_string(each.count()), phase, nullptr, [&](plan::BlockWriter& w) { w.host(each); });
  }

  /// Returns the unit's elements.
  std::int64_t gather(std::size_t index) {
    const Unit& u = stage_.units[index];
    const std::int64_t elements = u.tape->elements(), bytes = gathered_bytes(u);
    if (gathered_[index]) return elements;
    gathered_[index] = true;
    if (bytes == 0) return elements;
    stage_.call(key("gather", u), Phase::parameter_gather, &u, [&](plan::BlockWriter& w) {
      if (!buffered(index) && reshard_) w.alloc(extra(u, kGathered), bytes, Category::communication, Frame::unit, Stream::data_gather);
      over_groups(w, CollectiveKind::all_gather, {gathered_bytes(u, Part::dense), gathered_bytes(u, Part::experts)}, "parameter gather", Stream::data_gather, 0);
      w.record(Stream::data_gather, extra(u, kEvent), Frame::unit);
    });
    return elements;
  }

  void wait_gather(std::size_t index, Phase phase) {
    const Unit& u = stage_.units[index];
    if (gathered_bytes(u) == 0 || kept_[index]) return;
    kept_[index] = !reshard_ || index + 1 == stage_.units.size() || stays(index);
    stage_.call(key("use gathered", u), phase, &u, [&](plan::BlockWriter& w) { w.wait(Stream::compute, extra(u, kEvent), Frame::unit); });
  }

  void reduce(std::size_t index) {
    const Unit& u = stage_.units[index];
    const std::int64_t elements = u.tape->trainable_elements(), dense = u.tape->trainable_elements(Part::dense), experts = elements - dense;
    if (elements == 0) return drop_gradients(u);
    const bool written = writes_into_bucket();
    if (doubles() && !written && !reducing_.empty()) free_reduced(stage_.units[reducing_.back()].tape->trainable_elements());   // the other buffer takes these
    free_reduced(most_);
    reducing_.push_back(index);
    reducing_elements_ += elements;
    const std::int64_t bytes = elements * reduce_bytes_, shard = divided(dense, Part::dense) + divided(experts, Part::experts);
    stage_.call(key("reduce", u), Phase::gradient_reduction, &u, [&](plan::BlockWriter& w) {
      if (written) free_gradients_of(u, w);   // they are the bucket
      if (!buffered(index)) w.alloc(extra(u, kBucket), bytes, Category::communication, Frame::unit);
      if (!written) {
        w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = elements * parameter_bytes_, .bytes_written = bytes, .name = "reduce copy-in"}), host());
        free_gradients_of(u, w);
      }
      over_groups(w, CollectiveKind::reduce_scatter, {dense * reduce_bytes_, experts * reduce_bytes_}, "gradient reduction", Stream::data_reduce, plan::kAfterCompute);
      if (stage_.sizes.replicate > 1) sum_over_replicas(w, shard * reduce_bytes_);
      w.kernel(builder().kernel({.kind = KernelKind::elementwise, .dtype = DType::fp32, .bytes_read = 2 * shard * main_bytes(), .bytes_written = shard * main_bytes(), .name = "accumulate shard"}),
               host(), Stream::data_reduce);
      w.record(Stream::data_reduce, extra(u, kReduced), Frame::unit);
    });
    if (doubles() && written) free_reduced(elements);   // the next layer's products write into the other buffer
  }

  /// Waits for the oldest reductions until the others hold no more elements than this; their buckets go.
  void free_reduced(std::int64_t most) {
    for (; reducing_elements_ > most; reducing_.pop_front()) {
      const Unit& u = stage_.units[reducing_.front()];
      reducing_elements_ -= u.tape->trainable_elements();
      stage_.call("free reduced " + std::to_string(u.tape->weights.size()), Phase::gradient_reduction, &u, [&](plan::BlockWriter& w) {
        w.wait(Stream::compute, extra(u, kReduced), Frame::unit);
        w.free(extra(u, kBucket), Frame::unit);
      });
    }
  }

  std::vector<bool> buffered_;          // with double buffers: the units that lie in them
  std::int64_t most_ = kLeast;          // elements under reduction
  std::deque<std::size_t> reducing_;    // units whose buckets are live, and their elements
  std::int64_t reducing_elements_ = 0;
};

}  // namespace

std::unique_ptr<DataParallelWriter> make_megatron_fsdp(Stage& stage) { return std::make_unique<MegatronFsdp>(stage); }

}  // namespace rehearse::strategies
