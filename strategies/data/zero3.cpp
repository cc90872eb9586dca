#include "strategies/data/zero3.h"

#include <algorithm>
#include <cmath>

#include "strategies/data/families.h"

namespace rehearse::strategies {

using model::KernelKind;
using plan::Category;
using plan::Phase;

Zero3::Zero3(Stage& stage) : ShardedWriter(stage, stage.profile.reduce) {
  // Defaults: runtime/zero/config.py.
  const DataParallel& dp = stage.strategy.data_parallel;
  prefetch_ = dp.prefetch_bucket.value_or(50'000'000);
  most_live_ = dp.max_live_parameters.value_or(1'000'000'000);
  reuse_distance_ = dp.max_reuse_distance.value_or(1'000'000'000);
  persistence_ = dp.persistence_threshold.value_or(100'000);
  sub_group_ = dp.sub_group.value_or(1'000'000'000);
  bucket_ = dp.bucket ? dp.bucket->value / reduce_bytes_ : profile().bucket_elements;
  if (bucket_ <= 0) bucket_ = 500'000'000;
  events_ = plan::Frame::below;
  second_ = stage.sizes.secondary;
  overlaps_ = dp.overlap_gradient_reduce.value_or(true);
  quantises_weights_ = dp.quantized_weights;
  quantises_gradients_ = dp.quantized_gradients && stage.sizes.inside < stage.sizes.shard;   // inside one node DeepSpeed reduces as ever
}

void Zero3::setup() {
  list_parameters();
  const Offload& o = stage_.strategy.memory.offload;
  if (!offloads_parameters()) persistent("parameter shards", parameter_shards(), Category::parameter);
  else if (o.parameters == MemoryTier::nvme) keep_on_disks();
  else stage_.rank_class.host.pinned += parameter_shards();   // pinned always (_create_param_groups_fp16_flat_cpu_memory)
  persistent("optimizer states", part_of(my_share(), false).states, Category::optimizer);
  keep_on_host(my_share(), sub_groups(my_share()));
  if (o.optimizer == MemoryTier::nvme) {
    const std::int64_t all = my_share().elements;   // of what is offloaded in part (copy_gradients) in proportion
    written_under_backward_ = all - left_in_buffer(all, largest(sub_groups(my_share())));
  }
  std::int64_t kept = 0, seconds = 0;
  for (const Parameter& p : parameters_) {
    kept += p.persistent && p.gathers ? p.bytes : 0;
    seconds += p.has_second ? second_bytes(p) : 0;
  }
  persistent("persistent parameters", kept, Category::parameter);
  persistent("second partition", seconds, Category::parameter);
  // Whatever the model has, the bucket has its full size (stage3.py, _setup_for_real_optimizer).
  persistent("reduce bucket", bucket_ * bucket_element_bytes(), Category::communication);
  if (!offloads_optimizer()) persistent("gradient partition", my_share().gradients, Category::gradient);
}

/// Elements of this rank's trained parameters, piece by piece, a parameter's shard that fills a piece being its last (stage3.py,
/// _create_fp16_sub_groups). Calls `found` with the parameters of each piece and their elements.
template <typename Found>
void Zero3::each_piece(Found found) {
  std::vector<std::size_t> piece;
  std::int64_t elements = 0;
  const auto close = [&] {
    if (!piece.empty()) found(piece, elements);
    piece.clear();
    elements = 0;
  };
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (!parameters_[p].trainable) continue;
    piece.push_back(p);
    elements += divided(parameters_[p].elements, parameters_[p].part);
    if (elements >= sub_group_) close();
  }
  close();
}

/// Pieces that lie within the first max_in_cpu elements stay in one buffer of host memory, as large as they could be; the others come
/// from disks through a pool of buffers and go back through one for a whole piece. Source: stage3.py, _create_param_groups_fp16_flat_cpu_memory,
/// _create_fp16_partitions_with_defragmentation; offload_config.py, DeepSpeedZeroOffloadParamConfig (buffer_count 5, buffer_size 1e8);
/// partitioned_param_swapper.py, _configure_aio, reserve_partitioned_swap_space.
void Zero3::keep_on_disks() {
  constexpr std::int64_t kPool = 5 * 100'000'000LL;
  plan::HostBytes& host = stage_.rank_class.host;
  std::int64_t trained = 0, before = 0, largest_away = 0, in_memory = 0;
  each_piece([&](const std::vector<std::size_t>&, std::int64_t elements) { trained += elements; });
  const std::int64_t room = std::min(trained, stage_.strategy.memory.offload.max_in_cpu);
  for (Parameter& p : parameters_) p.on_disk = true;
  each_piece([&](const std::vector<std::size_t>& piece, std::int64_t elements) {
    const bool fits = before + elements <= room;
    for (const std::size_t p : piece) parameters_[p].on_disk = !fits;
    if (fits) in_memory += elements;
    else largest_away = std::max(largest_away, elements);
    before += elements;
  });
  host.pinned += (room + kPool + largest_away) * stored_bytes();
  host.nvme += parameter_shards() - in_memory * stored_bytes();
}

void Zero3::follow(std::vector<ModuleUse> uses) {
  for (const ModuleUse& use : uses) {
    std::vector<std::size_t> of;
    for (const int w : use.weights) of.push_back(index_of(use.unit, w));
    std::sort(of.begin(), of.end());
    of.erase(std::unique(of.begin(), of.end()), of.end());
    uses_.push_back(std::move(of));
  }
}

void Zero3::begin_step() {
  ShardedWriter::begin_step();
  copied_down_ = 0;
  live_ = 0;   // _partition_all_parameters
  reset();
}

void Zero3::after_forward(std::size_t unit, int) {
  if (evaluates() && unit + 1 == stage_.units.size()) reset();
}

void Zero3::gradients_made(std::size_t unit, const std::vector<int>& weights, int micro_batch) {
  micro_batch_ = micro_batch;
  for (const int w : weights) {
    const Weight& weight = stage_.units[unit].tape->weights[static_cast<std::size_t>(w)];
    if (weight.gradient_elsewhere) continue;
    if (in_bucket_ + weight.elements > bucket_ && in_bucket_ > 0) reduce();
    into_bucket(unit, w, weight);
  }
}

/// independent_gradient_partition_epilogue: the host waits for the stream of reductions after each micro-batch (stage3.py,
/// reduce_and_partition_stream.synchronize), whatever it overlaps.
void Zero3::after_backward(std::size_t unit, int, bool, bool) {
  if (unit > 0) return;
  reduce();
  reductions_ = 0;
  stage_.call("end of gradient partition", Phase::gradient_reduction, nullptr, [this](plan::BlockWriter& w) {
    const auto wait_for = [&w](plan::Stream stream) {
      w.record(stream, Stage::kPersistentSlots - 2);
      w.host_wait(Stage::kPersistentSlots - 2);
    };
    wait_for(plan::Stream::data_reduce);
    if (offloads_optimizer()) wait_for(plan::Stream::to_host);   // DeepSpeed's copies are on the same stream
  });
  reset();
}

void Zero3::end_step() {
  stage_.call("wait gradients", Phase::gradient_reduction, nullptr, [](plan::BlockWriter& w) { wait_for_reductions(w); });
  end_evaluation();
  clip(my_share(), true);
  const std::vector<Share> groups = sub_groups(my_share());
  for (const Share& group : groups) step_on_device(part_of(group, false));
  if (offloads_optimizer()) {
    std::vector<Share> on_host;
    for (const Share& group : groups) on_host.push_back(part_of(group, true));
    update_on_host(on_host, offloads_parameters() ? Return::cast_and_stay : Return::cast);
  }
  gather_persistent();
  drop_seconds();
}

void Zero3::end_evaluation() {
  for (std::size_t p = 0; p < parameters_.size(); ++p)
    if (parameters_[p].state == State::available && !parameters_[p].persistent) let_go(p, evaluates() ? Phase::forward : Phase::gradient_reduction);   // _partition_all_parameters, before the update
  for (const std::size_t handle : ongoing_) stage_.frames.release(handles_[handle].frame, handle_slots());
  ongoing_.clear();
  handles_.clear();
}

/// The share in pieces that are updated one after the other.
std::vector<DataParallelWriter::Share> Zero3::sub_groups(const Share& mine) {
  // Unless the job says how large they are, the kernels of all pieces in GPU or host memory are one: their launches cost nothing
  // beside what they move.
  struct Piece {
    std::int64_t elements = 0;
    bool on_disk = false;
  };
  std::vector<Piece> pieces;
  std::int64_t all = 0, away = 0;
  each_piece([&](const std::vector<std::size_t>& piece, std::int64_t elements) {
    pieces.push_back({elements, parameters_[piece.front()].on_disk});
    all += elements;
    if (pieces.back().on_disk) away += elements;
  });
  const auto share_of = [](std::int64_t n, std::int64_t part, std::int64_t whole) { return whole > 0 ? std::llround(static_cast<double>(n) * static_cast<double>(part) / static_cast<double>(whole)) : 0; };
  const bool together = !stage_.strategy.data_parallel.sub_group && stage_.strategy.memory.offload.optimizer != MemoryTier::nvme;
  if (together || pieces.size() < 2) {
    Share one = mine;
    one.to_disk = share_of(mine.stored, away, all);
    return {one};
  }
  std::vector<Share> out;
  std::int64_t before = 0;
  for (const Piece& piece : pieces) {
    const auto part = [&](std::int64_t n) { return share_of(n, before + piece.elements, all) - share_of(n, before, all); };
    Share& one = out.emplace_back(mine);   // what is not counted is as of the whole
    for (std::int64_t Share::*count : {&Share::elements, &Share::stored, &Share::gradients, &Share::states, &Share::later}) one.*count = part(mine.*count);
    one.to_disk = piece.on_disk ? one.stored : 0;
    before += piece.elements;
  }
  return out;
}

/// The gradients of a sub-group are put together and cast before it is updated (_prepare_fp32_grad_for_sub_group).
void Zero3::step_on_device(const Share& mine) {
  if (mine.elements == 0) return;
  const bool casts = profile().master_parameters && stored_bytes() < 4;
  const std::int64_t together = stage_.strategy.data_parallel.sub_group ? mine.elements : std::min(mine.elements, sub_group_);
  if (casts)
    append("gradients of a sub-group " + std::to_string(mine.elements), Phase::optimizer, stage_.persistent, plan::kNoFrame, [&](plan::BlockWriter& w) {
      w.alloc(kTogether, together * stored_bytes(), Category::temporary);
      w.alloc(kWide, together * 4, Category::temporary);
      elementwise(w, "flatten gradients", mine.gradients, mine.gradients, plan::Stream::compute);
      elementwise(w, "cast gradients", mine.gradients, mine.elements * 4, plan::Stream::compute);
      w.free(kTogether);
    });
  update(mine);
  if (casts) append("free gradients of a sub-group", Phase::optimizer, stage_.persistent, plan::kNoFrame, [&](plan::BlockWriter& w) { w.free(kWide); });
}

std::unique_ptr<DataParallelWriter> make_zero3(Stage& stage) { return std::make_unique<Zero3>(stage); }

}  // namespace rehearse::strategies
