// The optimizer on the host: gradients go down, the CPU updates, parameters come back. Sources: Ren et al. 2021
// (ZeRO-Offload), Rajbhandari et al. 2021 (ZeRO-Infinity); deepspeed runtime/zero/stage_1_and_2.py and stage3.py,
// swap_tensor/partitioned_optimizer_swapper.py.
#include <algorithm>
#include <cmath>

#include "strategies/data/data_parallel.h"

namespace rehearse::strategies {

using model::KernelKind;
using plan::Category;
using plan::Phase;
using plan::Stream;

DataParallelWriter::Share DataParallelWriter::part_of(const Share& all, bool on_host) const {
  return scaled(all, offloads_optimizer() ? stage_.strategy.memory.offload.ratio : 0, !on_host);
}

DataParallelWriter::Share DataParallelWriter::scaled(const Share& all, double ratio, bool remainder) {
  auto share = [&](std::int64_t n) { return static_cast<std::int64_t>(std::llround(static_cast<double>(n) * ratio)); };
  auto part = [&](std::int64_t n) { return remainder ? n - share(n) : share(n); };
  return {.elements = part(all.elements), .stored = part(all.stored), .gradients = part(all.gradients), .states = part(all.states), .later = part(all.later), .to_disk = part(all.to_disk), .master = all.master, .sharded = all.sharded};
}

std::int64_t DataParallelWriter::largest(const std::vector<Share>& pieces) {
  std::int64_t most = 0;
  for (const Share& piece : pieces) most = std::max(most, piece.elements);
  return most;
}

/// NVMe: pinned, each for a whole piece of parameters, gradients or a moment (offload_config.py, buffer_count; optimizer_utils.py,
/// largest_numel). Pipelined, one piece is read and one is written beside the one that is updated (pipelined_optimizer_swapper.py:
/// "ran out of swap buffers, try increasing 'buffer_count'").
std::int64_t DataParallelWriter::swap_buffers(std::size_t pieces) const {
  const Offload& o = stage_.strategy.memory.offload;
  return o.buffers.value_or((moments() + 2) * (o.pipelined && pieces > 1 ? 3 : 1));
}

/// PyTorch's optimizers step over FSDP's shards as they are, so their moments and gradients have the shards' format.
bool DataParallelWriter::updates_shards(const Share& mine) const {
  const DataParallelKind kind = stage_.strategy.data_parallel.kind;
  return (kind == DataParallelKind::fsdp1 || kind == DataParallelKind::fsdp2) && !mine.master;
}

/// Bytes per element of each tensor that the CPU's optimizer has. DeepSpeed's and Megatron's work in fp32, whatever the GPU would have kept.
std::int64_t DataParallelWriter::host_width(const Share& mine) const { return updates_shards(mine) ? mine.stored / std::max<std::int64_t>(1, mine.elements) : 4; }

void DataParallelWriter::keep_on_host(const Share& all, const std::vector<Share>& pieces) {
  const Share host = part_of(all, true);
  if (host.elements == 0) return;
  const std::int64_t width = host_width(host), gradients = host.elements * width;
  const std::int64_t states = host.elements * width * (moments() + (updates_shards(host) && offloads_parameters() ? 0 : 1));   // shards that live here are counted with the parameters
  const Offload& o = stage_.strategy.memory.offload;
  const bool disk = o.optimizer == MemoryTier::nvme;
  std::int64_t& ram = o.pinned ? stage_.rank_class.host.pinned : stage_.rank_class.host.pageable;
  // Wide gradients go to the disks as well (partitioned_optimizer_swapper.py, swap_out_gradients); their sum over micro-batches
  // stays in host memory in the format of the model (stage3.py, grad_partitions_flat_buffer; in 2021 only where there were several,
  // allocate_grads_in_partition; stage_1_and_2.py, accumulated_grads_in_cpu, likewise).
  const DataParallelKind kind = stage_.strategy.data_parallel.kind;
  const bool zero3 = kind == DataParallelKind::zero3, deepspeed = zero3 || kind == DataParallelKind::zero1 || kind == DataParallelKind::zero2;
  (disk ? stage_.rank_class.host.nvme : ram) += states + gradients;
  if (deepspeed && ((zero3 && profile().keeps_gradient_sums) || stage_.strategy.micro_batches() > 1)) ram += host.stored;
  if (deepspeed && !zero3 && profile().offload_return == OffloadReturn::narrow) ram += host.stored;   // param_buffer_of_bit16_for_cpu_offload_groups
  if (disk) stage_.rank_class.host.pinned += swap_buffers(pieces.size()) * part_of({.elements = largest(pieces)}, true).elements * 4;
}

/// `bytes` are what the host has of earlier micro-batches and gives back, in the format in which they add up; `bytes_down` what it gets.
void DataParallelWriter::copy_gradients(plan::BlockWriter& w, std::int64_t bytes, std::int64_t bytes_down, Stream after, bool first, const Turns& turns, bool to_disk) {
  const bool pinned = stage_.strategy.memory.offload.pinned;
  for (std::int64_t* part : {&bytes, &bytes_down}) *part = static_cast<std::int64_t>(std::llround(static_cast<double>(*part) * stage_.strategy.memory.offload.ratio));
  if (bytes_down == 0) return;
  const std::uint32_t event = Stage::kPersistentSlots - 6;
  w.record(after, event);
  if (!first) {  // accumulated on the GPU: what the host has comes back, is added to and goes down again
    w.wait(Stream::to_device, event);
    w.copy(builder().copy({plan::CopySpec::Direction::host_to_device, pinned, Bytes{bytes}, false, turns.ranks}), Stream::to_device, 0, host());
    w.record(Stream::to_device, Stage::kPersistentSlots - 7);
    w.wait(Stream::to_host, Stage::kPersistentSlots - 7);
  }
  w.wait(Stream::to_host, event);
  w.copy(builder().copy({plan::CopySpec::Direction::device_to_host, pinned, Bytes{bytes_down}, to_disk, turns.ranks}), Stream::to_host, 0, host());
  if (pinned && turns.ranks == 1 && !turns.holds_host) return;
  w.record(Stream::to_host, Stage::kPersistentSlots - 8);
  if (turns.ranks > 1) w.wait(turns.holds_compute ? Stream::compute : after, Stage::kPersistentSlots - 8);
  if (!pinned || turns.holds_host) w.host_wait(Stage::kPersistentSlots - 8);   // a pageable copy holds the host thread
}

/// stage_1_and_2.py, copy_grads_in_partition: set_norm_for_param_grad_in_gpu (double().norm(2)), the overflow tracker (_has_inf_or_nan: until 2023
/// float().sum(), then float(), isnan, isinf, logical_or, float(), max), async_inplace_copy_grad_to_fp32_buffer_from_gpu (float()). The host waits for each
/// parameter's overflow, in the stream that has the copies of those before it: but for the last one's, nothing of backward runs beside them (Turns::holds_host).
/// calibrate/ground_truth on an H200 (DeepSpeed 0.19.8, pinned memory): of two micro-batches of 1.5 billion parameters the first takes 42 ms longer backward
/// than without an optimizer on the host, the last 239, where its copies take 218.
void DataParallelWriter::inspect_gradients(plan::BlockWriter& w, std::int64_t elements, std::int64_t largest, Stream on) {
  const auto part = static_cast<std::int64_t>(std::llround(static_cast<double>(elements) * stage_.strategy.memory.offload.ratio));
  constexpr std::uint32_t kWide = Stage::kPersistentSlots - 32;   // of one parameter at a time
  const std::int64_t read = 10 + (profile().checks_by_parameter ? 6 : 17) + 2, written = 8 + (profile().checks_by_parameter ? 4 : 11) + 4;
  w.alloc(kWide, 8 * std::min(largest, part), Category::temporary, plan::Frame::own, on);
  w.kernel(builder().kernel({.kind = KernelKind::elementwise, .dtype = DType::fp32, .bytes_read = read * part, .bytes_written = written * part, .name = "norm and overflow of offloaded gradients"}), host(), on);
  w.free(kWide);
}

std::int64_t DataParallelWriter::largest_weight(const Unit& unit) {
  std::int64_t largest = 0;
  for (const Weight& weight : unit.tape->weights) largest = std::max(largest, weight.trainable ? weight.elements : 0);
  return largest;
}

std::int64_t DataParallelWriter::largest_weight() const {
  std::int64_t largest = 0;
  for (const Unit& u : stage_.units) largest = std::max(largest, largest_weight(u));
  return largest;
}

int DataParallelWriter::cpu_threads() const {
  const GroupSizes& s = stage_.sizes;
  const bool alone = s.tensor * s.data * s.pipeline == 1;   // torchrun leaves a single process its threads (torch/distributed/run.py, config_from_args)
  return stage_.strategy.memory.offload.threads.value_or(alone ? 0 : profile().cpu_threads);
}

/// Per element of a CPU optimizer: DRAM traffic, how much of it is of tensors that can be pinned, and bytes of tensors that it makes.
/// DeepSpeedCPUAdam (csrc/adam/cpu_adam_impl.cpp) and PyTorch's fused CPU kernels go over parameter, moments and gradient once. PyTorch's
/// other Adam goes operator by operator (torch/optim/adam.py, _single_tensor_adam; foreach does the same on the CPU): decay 8 bytes,
/// first moment 12, second 8 + 12, square root 8, division 8, epsilon 8, update 16; root and quotient are new tensors. All for tensors of
/// fp32. Of 16 bits those operators take half (torch.optim.AdamW of PyTorch 2.13 on one core of an EPYC: 0.4 to 0.7 of fp32's time); the fused
/// kernel, which widens each element, takes as long as in fp32 there.
DataParallelWriter::HostTraffic DataParallelWriter::update_traffic(std::int64_t width) const {
  const DataParallelKind kind = stage_.strategy.data_parallel.kind;
  const bool deepspeed = kind == DataParallelKind::zero1 || kind == DataParallelKind::zero2 || kind == DataParallelKind::zero3, fsdp = kind == DataParallelKind::fsdp1 || kind == DataParallelKind::fsdp2;
  const std::int64_t k = moments();
  HostTraffic t{.moved = 8 + 8 * k + 4, .pinned = 12};
  if (!deepspeed && !profile().fused_optimizer && k == 2) t = {.moved = 80, .pinned = 24, .fresh = 8};
  // DeepSpeed has the norm from the GPU and scales whether it clips or not (unscale_and_clip_grads); FSDP's gradients are in host memory.
  const std::int64_t clipping = deepspeed ? 8 : !stage_.strategy.training.clip_gradients ? 0 : fsdp ? 12 : 8;
  t.moved += clipping;
  t.pinned += clipping;
  if (!profile().fused_optimizer)
    for (std::int64_t* bytes : {&t.moved, &t.pinned, &t.fresh}) *bytes = *bytes * width / 4;
  return t;
}

DataParallelWriter::Return DataParallelWriter::zero_return() const {
  switch (profile().offload_return) {
    case OffloadReturn::wide: return Return::wide;
    case OffloadReturn::cast: return Return::cast;
    case OffloadReturn::under_update: return Return::under_update;
    case OffloadReturn::narrow: break;
  }
  return Return::narrow;
}

void DataParallelWriter::split_tiles(const Share& all, std::vector<Share>& into) const {
  for (std::int64_t done = 0; done < all.elements; done += profile().update_tile) {
    const std::int64_t n = std::min(profile().update_tile, all.elements - done);
    into.push_back({.elements = n, .stored = all.stored / all.elements * n, .gradients = all.gradients / all.elements * n, .master = all.master, .sharded = all.sharded});
  }
}

void DataParallelWriter::update_on_host(const std::vector<Share>& groups, Return back) {
  constexpr std::uint32_t kReturned = Stage::kPersistentSlots - 31;   // fp32 parameters on the GPU (fp32_partition.to(device))
  const Offload& o = stage_.strategy.memory.offload;
  const std::int64_t k = moments();
  const bool disk = o.optimizer == MemoryTier::nvme, pipelined = disk && o.pipelined;
  HostTraffic traffic = update_traffic(groups.empty() ? 4 : host_width(groups.front()));
  std::vector<Share> mine;
  for (const Share& group : groups) {
    if (group.elements == 0) continue;
    if (back == Return::under_update) split_tiles(group, mine);
    else mine.push_back(group);
  }
  if (back == Return::under_update) {   // written to a buffer (read first, as caches do), from which a kernel of the GPU reads them
    traffic.moved += 12;
    traffic.pinned += 12;
  }
  // Gradients are read with the states; their way out is under backward, but for the last buffer's.
  const auto reads = [&](std::size_t i) { return disk && i < mine.size() ? mine[i].elements * (4 + 4 * k + 4) : 0; };
  const auto writes = [&](std::size_t i) { return i < mine.size() ? (disk ? mine[i].elements * (4 + 4 * k) : 0) + mine[i].to_disk : 0; };
  const auto on_disk = [&](const char* what, std::int64_t read, std::int64_t written) {
    stage_.call(std::string("CPU optimizer ") + what + " " + std::to_string(read + written), Phase::optimizer, nullptr,
                [&](plan::BlockWriter& w) { w.host_work(builder().host_work({std::string("CPU optimizer, ") + what, Bytes{0}, Bytes{read}, Bytes{written}, false})); });
  };
  if (disk && !mine.empty()) {
    stage_.call("wait gradients on host", Phase::optimizer, nullptr, [](plan::BlockWriter& w) {   // their norm was made behind their copies
      w.record(Stream::to_host, Stage::kPersistentSlots - 6);
      w.host_wait(Stage::kPersistentSlots - 6);
    });
    std::int64_t elements = 0;
    for (const Share& piece : mine) elements += piece.elements;
    on_disk("last gradients out", 0, 4 * left_in_buffer(elements, largest(mine)));
    if (pipelined) on_disk("first states in", reads(0), 0);
  }
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const bool wide = back == Return::wide || back == Return::under_update;
    const std::int64_t n = mine[i].elements, stored = mine[i].stored, returned = wide ? n * 4 : stored;
    // Where both sides differ in format, a blocking copy_ casts on the CPU, into a new tensor unless the result stays there
    // (aten/src/ATen/native/cuda/Copy.cu, copy_kernel_cuda): read in fp32, written narrow. FSDP's parameters are the optimizer's own.
    const bool casts = back == Return::narrow || back == Return::cast || back == Return::cast_and_stay, pinned = (o.pinned && back != Return::cast) || wide;
    const std::int64_t dram = n * (traffic.moved + (casts ? 4 : 0)) + (wide || back == Return::nothing ? 0 : stored), fresh = n * traffic.fresh + (back == Return::cast ? stored : 0);
    // Swap buffers are pinned; so is what is cast to stay (stage3.py, param_groups_fp16_flat_cpu_memory).
    const std::int64_t near = disk ? dram : !o.pinned ? 0 : n * (traffic.pinned + (casts ? 4 : 0)) + (back == Return::narrow || back == Return::cast_and_stay ? stored : 0);
    // Pipelined, the next states come in and the ones before go out under the update.
    const std::int64_t in = pipelined ? reads(i + 1) : reads(i), out = pipelined ? (i > 0 ? writes(i - 1) : 0) : writes(i);
    const bool waits = back != Return::under_update && (pipelined || i + 1 < mine.size());   // the copy is a blocking one; after the last the host has nothing left to do but to write states
    stage_.call("CPU optimizer " + std::to_string(n) + " " + std::to_string(returned) + (mine.size() > 1 ? " " + std::to_string(in) + " " + std::to_string(out) + (waits ? " waits" : "") : ""), Phase::optimizer, nullptr, [&](plan::BlockWriter& w) {
      const std::uint32_t arrived = Stage::kPersistentSlots - 6;
      w.record(Stream::to_host, arrived);
      w.host_wait(arrived);
      w.host_work(builder().host_work({"CPU optimizer", Bytes{dram}, Bytes{in}, Bytes{out}, pipelined, cpu_threads(), Bytes{fresh}, Bytes{near}}));
      if (back == Return::nothing || back == Return::cast_and_stay) return;
      if (back == Return::wide) w.alloc(kReturned, returned, Category::temporary);
      w.copy(builder().copy({plan::CopySpec::Direction::host_to_device, pinned, Bytes{returned}}), Stream::to_device, plan::kComputeWaits, host());
      if (back == Return::wide) {
        w.kernel(builder().kernel({.kind = KernelKind::elementwise, .dtype = DType::fp32, .bytes_read = returned, .bytes_written = stored, .name = "narrow parameters"}), host());
        w.free(kReturned);
      }
      if (!waits) return;
      w.record(Stream::to_device, Stage::kPersistentSlots - 9);
      w.host_wait(Stage::kPersistentSlots - 9);
    });
  }
  if (pipelined && !mine.empty()) on_disk("last states out", 0, writes(mine.size() - 1));
}

}  // namespace rehearse::strategies
