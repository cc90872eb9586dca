#include "strategies/data/data_parallel.h"

#include "strategies/optimizer/optimizer.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>

namespace rehearse::strategies {

using model::KernelKind;
using plan::Category;
using plan::GroupAxis;
using plan::Phase;

std::int64_t Stage::elements(Part part) const {
  std::int64_t n = 0;
  for (const Unit& u : units) n += u.tape->elements(part);
  return n;
}

std::int64_t Stage::trainable_elements(Part part) const {
  std::int64_t n = 0;
  for (const Unit& u : units) n += u.tape->trainable_elements(part);
  return n;
}

std::int64_t Stage::parameter_bytes(std::int64_t element, Part part) const {
  std::int64_t n = 0;
  for (const Unit& u : units) n += u.tape->parameter_bytes(element, part);
  return n;
}

std::int64_t Stage::trainable_bytes(std::int64_t element, Part part) const {
  std::int64_t n = 0;
  for (const Unit& u : units) n += u.tape->trainable_bytes(element, part);
  return n;
}

std::int64_t Stage::wide_trainable_elements(Part part) const {
  std::int64_t n = 0;
  for (const Unit& u : units)
    for (const Weight& w : u.tape->weights) n += w.in(part) && w.trainable && w.wide_bytes > 0 && !w.parameter_elsewhere ? w.elements : 0;
  return n;
}

void DataParallelWriter::persistent(const std::string& name, std::int64_t bytes, Category category) {
  if (bytes <= 0) return;
  const std::uint32_t slot = stage_.persistent_slot();
  stage_.call("allocate " + name + " " + std::to_string(slot) + " " + std::to_string(bytes), Phase::setup, nullptr,
              [&](plan::BlockWriter& w) { w.alloc(slot, bytes, category); });
}

std::int64_t DataParallelWriter::moments() const { return moments_of(stage_.strategy.training.optimizer); }

std::int64_t DataParallelWriter::state_bytes() const { return moments() * bits(profile().optimizer_state) / 8 + profile().master_bytes(); }

/// States with a shape or format of their own, weight by weight; none where moments are elementwise.
std::int64_t DataParallelWriter::own_states(Part part) const {
  const Optimizer optimizer = stage_.strategy.training.optimizer;
  std::int64_t states = 0;
  if (moments() > 0) return states;
  for (const Unit& u : stage_.units)
    for (const Weight& w : u.tape->weights)
      if (w.trainable && !w.parameter_elsewhere && w.expert == (part == Part::experts)) states += strategies::state_bytes(w, optimizer, w.wide_bytes > 0 ? 4 : bits(profile().optimizer_state) / 8) / owners_of(w);
  return states;
}

/// Parameters that this rank updates: of a buffer that ranks share, as many as a part of it holds. Experts of grouped products are a parameter each.
std::int64_t DataParallelWriter::own_parameters(bool sharded) const {
  std::int64_t own = 0;
  for (const Part part : kParts) {
    std::int64_t all = 0;
    for (const Unit& u : stage_.units)
      for (const Weight& w : u.tape->weights)
        if (w.trainable && !w.parameter_elsewhere && w.in(part)) all += profile().transformer_engine || !profile().grouped_experts ? w.experts : 1;
    const std::int64_t ranks = sharded ? stage_.sizes.sharing(part) : 1;
    own += (all + ranks - 1) / ranks;
  }
  return own;
}

DataParallelWriter::Share DataParallelWriter::share(bool sharded, std::int64_t gradient) const {
  Share mine{.sharded = sharded};
  for (const Part part : kParts) {
    const std::int64_t ranks = sharded ? stage_.sizes.sharing(part) : 1;
    auto divided = [&](std::int64_t n) { return (n + ranks - 1) / ranks; };
    const std::int64_t wide = divided(stage_.wide_trainable_elements(part)), usual = divided(stage_.trainable_elements(part) - stage_.wide_trainable_elements(part));
    // What is kept in fp32 beside a 16-bit model is its own master copy.
    mine.elements += usual + wide;
    mine.stored += usual * stored_bytes() + wide * 4;
    mine.gradients += usual * gradient + wide * 4;
    mine.states += divided(own_states(part)) + usual * state_bytes() + wide * moments() * 4;
    mine.later += divided(own_states(part)) + (usual * bits(profile().optimizer_state) / 8 + wide * 4) * moments();
    mine.master = mine.master || (profile().updates_master() && usual > 0);
  }
  return mine;
}

std::vector<std::int64_t> DataParallelWriter::shares_of_whole_tensors() const {
  std::vector<std::int64_t> tensors;
  for (const Unit& u : stage_.units)
    for (const Weight& w : u.tape->weights)
      if (w.trainable && !w.parameter_elsewhere) tensors.push_back(w.elements * stored_bytes());
  std::sort(tensors.begin(), tensors.end(), std::greater<>());
  using Has = std::pair<std::int64_t, std::size_t>;   // bytes, rank
  std::priority_queue<Has, std::vector<Has>, std::greater<>> least;
  std::vector<std::int64_t> shares(static_cast<std::size_t>(stage_.sizes.shard));
  for (std::size_t rank = 0; rank < shares.size(); ++rank) least.emplace(0, rank);
  for (const std::int64_t bytes : tensors) {
    const std::size_t rank = least.top().second;
    least.pop();
    shares[rank] += bytes;
    least.emplace(shares[rank], rank);
  }
  return shares;
}

void DataParallelWriter::sum_copies(const Share& mine) {
  if (stage_.sizes.copies == 1 || mine.gradients == 0) return;
  const std::int64_t bytes = mine.gradients;
  stage_.call("sum gradients of both copies " + std::to_string(bytes), Phase::gradient_reduction, nullptr, [&](plan::BlockWriter& w) {
    w.collective(builder().collective({CollectiveKind::all_reduce, GroupAxis::mirror, Bytes{bytes}, "gradients of both copies"}), plan::Stream::data_reduce, plan::kAfterCompute | plan::kComputeWaits,
                 profile().collective_host);
  });
}

void DataParallelWriter::clip(const Share& mine, bool sharded, std::int64_t largest_double) {
  const std::int64_t bytes = mine.gradients;
  if (!stage_.strategy.training.clip_gradients || (bytes == 0 && stage_.sizes.pipeline == 1)) return;  // a frozen stage, or the loss alone, takes part in the sum
  const std::string key = "clip gradients " + std::to_string(bytes) + (sharded ? " sharded" : "") + (largest_double > 0 ? " in doubles" : "");
  stage_.call(key, Phase::optimizer, nullptr, [&](plan::BlockWriter& w) {
    if (profile().norm_host > Duration{}) w.host(profile().norm_host * own_parameters(sharded));
    const std::int64_t read = largest_double > 0 ? mine.elements * 8 : bytes;
    constexpr std::uint32_t doubles = Stage::kPersistentSlots - 20;
    if (largest_double > 0) {
      w.alloc(doubles, largest_double * 8, Category::temporary);
      w.kernel(builder().kernel({.kind = KernelKind::converting, .dtype = DType::fp32, .bytes_read = bytes, .bytes_written = read, .elements = 2 * mine.elements, .name = "widen gradients to fp64"}), host());
    }
    w.kernel(builder().kernel({.kind = KernelKind::reduction, .dtype = DType::fp32, .bytes_read = read, .bytes_written = 4096, .name = "gradient norm"}), host());
    if (largest_double > 0) w.free(doubles);
    const int both = plan::kAfterCompute | plan::kComputeWaits;
    auto sum = [&](GroupAxis axis) {
      w.collective(builder().collective({CollectiveKind::all_reduce, axis, Bytes{4}, "gradient norm"}), plan::Stream::data_reduce, both, profile().collective_host);
    };
    if (sharded && stage_.sizes.shard > 1) sum(GroupAxis::data);
    const bool in_passing = stage_.strategy.pipeline.post_validation && stage_.sizes.pipeline > 1;
    if (in_passing && stage_.sizes.tensor > 1) sum(GroupAxis::tensor);
    if (in_passing) pass_norm_on(w);
    else if (stage_.sizes.tensor * stage_.sizes.pipeline > 1) sum(GroupAxis::model);
    if (profile().gradient_norm_sync) w.host_sync();
    if (!offloads_optimizer())  // the CPU scales them with its update
      w.kernel(builder().kernel({.kind = KernelKind::elementwise, .dtype = DType::fp32, .bytes_read = bytes, .bytes_written = bytes, .name = "clip gradients"}), host());
  });
}

void DataParallelWriter::pass_norm_on(plan::BlockWriter& w) {
  constexpr std::uint8_t kChannel = 2;  // beside activations and gradients
  const int both = plan::kAfterCompute | plan::kComputeWaits;
  if (stage_.sizes.stage_before >= 0)
    w.recv(builder().message({static_cast<std::uint16_t>(stage_.sizes.stage_before), kChannel, Bytes{4}}), plan::Stream::recv_forward, both, profile().collective_host);
  w.kernel(builder().kernel({.kind = KernelKind::elementwise, .dtype = DType::fp32, .bytes_read = 8, .bytes_written = 4, .name = "add to norm"}), host());
  if (stage_.sizes.stage_after >= 0)
    w.send(builder().message({static_cast<std::uint16_t>(stage_.sizes.stage_after), kChannel, Bytes{4}}), plan::Stream::send_forward, plan::kAfterCompute, profile().collective_host);
}

bool DataParallelWriter::makes_states_late() const {
  const DataParallelKind kind = stage_.strategy.data_parallel.kind;
  const bool deepspeed = kind == DataParallelKind::zero1 || kind == DataParallelKind::zero2 || kind == DataParallelKind::zero3;
  const Memory& memory = stage_.strategy.memory;
  return profile().states_at_first_step && !deepspeed && !evaluates() && !offloads_optimizer() && !memory.paged_optimizer;
}

void DataParallelWriter::keep_states(const Share& mine) {
  if (!makes_states_late()) return persistent("optimizer states", mine.states - paged_bytes(), Category::optimizer);
  const PartsOfWeights parts = own_parts(mine);
  states_ = tensors_of(late_states(parts));
  if (std::int64_t master = mine.states - mine.later; master > 0 && cuts_buffer()) {
    const UnitTensors masters = tensors_of(master_copies(parts));
    for (const Unit& u : stage_.units) make("master copies", masters, u, Phase::setup);
  } else {
    persistent("optimizer states", master, Category::optimizer);
  }
}

/// Megatron's distributed optimizer cuts one buffer of all parameters, so that a rank has whole weights; others cut each weight.
bool DataParallelWriter::cuts_buffer() const { return stage_.strategy.data_parallel.kind == DataParallelKind::distributed_optimizer && !profile().gathers_through_copies; }

/// What this rank updates of each unit's trained weights.
DataParallelWriter::PartsOfWeights DataParallelWriter::own_parts(const Share& mine) const {
  std::array<std::int64_t, 2> left{};   // elements of this rank's part of the buffer: dense weights, experts
  for (const Part part : kParts) {
    const std::int64_t ranks = mine.sharded ? stage_.sizes.sharing(part) : 1;
    left[part == Part::experts] = (stage_.trainable_elements(part) + ranks - 1) / ranks;
  }
  PartsOfWeights parts(stage_.units.size());
  const std::vector<UnitWeight> own = own_matrices();
  for (std::size_t u = 0; u < parts.size(); ++u)
    for (const Weight& w : stage_.units[u].tape->weights) {
      if (!w.trainable || w.parameter_elsewhere || w.elements == 0) continue;
      const std::int64_t ranks = mine.sharded ? stage_.sizes.sharing(w.expert ? Part::experts : Part::dense) : 1;
      const bool dealt = owners() > 1 && is_orthogonalised(w), sliced = !dealt && owners_of(w) > 1;
      if (dealt && std::find(own.begin(), own.end(), UnitWeight{&stage_.units[u], &w}) == own.end()) continue;   // another rank's
      // Transformer Engine's grouped products and loops over experts have a parameter per expert.
      const std::int64_t parameters = profile().transformer_engine || !profile().grouped_experts ? w.experts : 1, whole = w.elements / parameters;
      for (std::int64_t p = 0; p < parameters; ++p) {
        const std::int64_t elements = cuts_buffer() ? std::min(whole, left[w.expert]) : (whole + ranks - 1) / ranks;
        left[w.expert] -= std::min(elements, left[w.expert]);
        if (elements == 0) break;
        parts[u].push_back({&w, elements, sliced ? owners_of(w) : 1});
      }
    }
  return parts;
}

std::vector<std::vector<std::int64_t>> DataParallelWriter::late_states(const PartsOfWeights& parts) const {
  const Optimizer optimizer = stage_.strategy.training.optimizer;
  std::vector<std::vector<std::int64_t>> tensors(parts.size());
  for (std::size_t u = 0; u < parts.size(); ++u)
    for (const PartOfWeight& part : parts[u]) {
      const Weight& w = *part.weight;
      const int count = state_tensors(w, optimizer);
      if (count == 0) continue;
      const double bytes = 1.0 / static_cast<double>(part.owners) * static_cast<double>(strategies::state_bytes(w, optimizer, w.wide_bytes > 0 ? 4 : bits(profile().optimizer_state) / 8)) / static_cast<double>(w.elements);
      tensors[u].insert(tensors[u].end(), static_cast<std::size_t>(count), static_cast<std::int64_t>(bytes * static_cast<double>(part.elements)) / count);
    }
  return tensors;
}

std::vector<std::vector<std::int64_t>> DataParallelWriter::master_copies(const PartsOfWeights& parts) const {
  std::vector<std::vector<std::int64_t>> tensors(parts.size());
  for (std::size_t u = 0; u < parts.size(); ++u)
    for (const PartOfWeight& part : parts[u])
      if (part.weight->wide_bytes == 0) tensors[u].push_back(part.elements * profile().master_bytes());
  return tensors;
}

DataParallelWriter::UnitTensors DataParallelWriter::tensors_of(std::vector<std::vector<std::int64_t>> bytes) {
  std::uint32_t slots = 0;
  for (const std::vector<std::int64_t>& of_unit : bytes) slots += static_cast<std::uint32_t>(of_unit.size());
  return {std::move(bytes), stage_.frames.acquire(slots)};   // before any frame of the step, which come back
}

void DataParallelWriter::make(const std::string& name, const UnitTensors& tensors, const Unit& unit, Phase phase, Category category) {
  of_unit("make " + name, tensors, unit, phase, [&](plan::BlockWriter& w, std::int64_t bytes) { w.alloc(w.new_slot(category == Category::optimizer ? "optimizer state" : "parameter"), bytes, category); });
}

void DataParallelWriter::let_go(const std::string& name, const UnitTensors& tensors, const Unit& unit, Phase phase) {
  of_unit("let go of " + name, tensors, unit, phase, [](plan::BlockWriter& w, std::int64_t) { w.free(w.new_slot("")); });
}

void DataParallelWriter::of_unit(const std::string& what, const UnitTensors& tensors, const Unit& unit, Phase phase, const std::function<void(plan::BlockWriter&, std::int64_t bytes)>& done) {
  if (tensors.bytes.empty()) return;
  const auto index = static_cast<std::size_t>(&unit - stage_.units.data());
  std::uint32_t frame = tensors.frame;
  for (std::size_t u = 0; u < index; ++u) frame += static_cast<std::uint32_t>(tensors.bytes[u].size());
  const auto alike = std::find(tensors.bytes.begin(), tensors.bytes.end(), tensors.bytes[index]) - tensors.bytes.begin();   // units with the same tensors share a block
  const std::uint32_t block = stage_.block(what + " " + std::to_string(alike), [&](plan::BlockWriter& w) {
    for (const std::int64_t bytes : tensors.bytes[index]) done(w, bytes);
  });
  if (block == plan::kNoFrame) return;
  plan::Call call{.block = block, .phase = phase, .layer = static_cast<std::int16_t>(unit.layer), .first_step_only = phase != Phase::setup};
  call.frames[static_cast<std::size_t>(plan::Frame::own)] = frame;
  stage_.append(call);
}

void DataParallelWriter::place_apart(bool begin) {
  for (const Unit& u : stage_.units) {
    const auto alike = std::find_if(stage_.units.begin(), stage_.units.end(), [&](const Unit& other) { return sizes_of(other) == sizes_of(u); }) - stage_.units.begin();
    stage_.call((begin ? "make parameters " : "free parameters ") + std::to_string(alike), Phase::setup, &u, [&](plan::BlockWriter& w) {
      const std::vector<std::int64_t> sizes = sizes_of(u);
      for (std::uint32_t i = 0; i < sizes.size(); ++i) {
        if (sizes[i] == 0) continue;
        if (begin) w.alloc(i, sizes[i], Category::parameter, plan::Frame::unit);
        else w.free(i, plan::Frame::unit);
      }
    });
  }
}

std::vector<std::int64_t> DataParallelWriter::sizes_of(const Unit& unit) const {
  std::vector<std::int64_t> sizes;
  for (const Weight& w : unit.tape->weights) sizes.push_back(w.trainable && !w.parameter_elsewhere ? w.elements * stored_bytes() : 0);
  return sizes;
}

void DataParallelWriter::update(const Share& mine, const std::function<bool(const Unit&)>& made) {
  if (mine.elements == 0) return;
  for (const Unit& u : stage_.units)
    if (!made || made(u)) make_states(u);
  const std::int64_t parts = profile().sums_muon_updates ? 1 : owners(), elements = mine.elements / parts;
  const std::int64_t read = mine.gradients / parts + mine.states + (mine.master ? 0 : mine.stored / parts);
  const std::int64_t written = mine.states + mine.stored / parts;
  const Optimizer optimizer = stage_.strategy.training.optimizer;
  const bool keeps_temporaries = !profile().fused_optimizer && optimizer == Optimizer::adamw;
  if (keeps_temporaries) foreach_temporaries(mine.stored, true);
  stage_.call("optimizer step " + std::to_string(elements) + " " + std::to_string(mine.gradients), Phase::optimizer, nullptr, [&](plan::BlockWriter& w) {
    if (profile().update_host > Duration{}) w.host(profile().update_host * own_parameters(mine.sharded));
    const double passes = profile().fused_optimizer ? 1.0 : foreach_passes(optimizer);
    if (optimizer == Optimizer::muon) orthogonalise(w);
    if (owners() > 1 && profile().sums_muon_updates) sum_updates(w);
    const ExtraTraffic more = extra_traffic(optimizer);
    const std::uint32_t working = Stage::kPersistentSlots - 10;
    w.alloc(working, more.temporary * largest_weight(), Category::temporary);
    w.kernel(builder().kernel({.kind = KernelKind::optimizer, .dtype = DType::fp32, .bytes_read = static_cast<std::int64_t>(static_cast<double>(read) * passes) + more.read * elements,
                               .bytes_written = static_cast<std::int64_t>(static_cast<double>(written) * passes) + more.written * elements, .elements = optimizer == Optimizer::adamw && profile().fused_optimizer ? elements : 0, .flops = 12.0 * static_cast<double>(elements), .name = "optimizer step"}),
             host());
    w.free(working);
  });
  if (keeps_temporaries) foreach_temporaries(mine.stored, false);
}

/// torch.optim's foreach form makes a temporary of each weight before it goes on to the next operation (optim/adam.py,
/// _multi_tensor_adam: exp_avg_sq_sqrt); here one of each unit's weights together.
void DataParallelWriter::foreach_temporaries(std::int64_t bytes, bool begin) {
  std::int64_t left = stage_.trainable_elements(), rest = bytes;
  for (const Unit& u : stage_.units) {
    const std::int64_t elements = u.tape->trainable_elements();
    if (elements == 0) continue;
    const auto part = static_cast<std::int64_t>(static_cast<double>(rest) * static_cast<double>(elements) / static_cast<double>(left));
    left -= elements;
    rest -= part;
    const auto slot = static_cast<std::uint32_t>(u.tape->weights.size()) + kForeachSlot;
    stage_.call((begin ? "foreach temporary " : "free foreach temporary ") + std::to_string(slot) + " " + std::to_string(part), Phase::optimizer, &u, [&](plan::BlockWriter& w) {
      if (begin) w.alloc(slot, part, Category::temporary, plan::Frame::unit);
      else w.free(slot, plan::Frame::unit);
    });
  }
}

void DataParallelWriter::free_gradients_of(const Unit& u, plan::BlockWriter& w) {
  for (std::size_t i = 0; i < u.tape->weights.size(); ++i)
    if (u.tape->weights[i].trainable && !u.tape->weights[i].gradient_elsewhere) w.free(static_cast<std::uint32_t>(i), plan::Frame::unit);
}

std::string DataParallelWriter::pattern_of(const Unit& u) {
  std::string pattern;
  for (const Weight& w : u.tape->weights) pattern += w.trainable && !w.gradient_elsewhere ? 'y' : 'n';
  return pattern;
}

void DataParallelWriter::free_gradients(Phase phase) {
  for (const Unit& u : stage_.units)
    stage_.call("free gradients " + pattern_of(u), phase, &u, [&](plan::BlockWriter& w) { free_gradients_of(u, w); });
}

/// Ranks among which Muon's matrices are dealt out.
std::int64_t DataParallelWriter::owners() const { return profile().muon_owners && stage_.strategy.training.optimizer == Optimizer::muon ? stage_.sizes.data : 1; }

/// Ranks that share a weight's states: what is not orthogonalised is cut into slices where gradients are reduced to owners (DistAdamW).
std::int64_t DataParallelWriter::owners_of(const Weight& w) const { return is_orthogonalised(w) || !profile().sums_muon_updates ? owners() : 1; }

/// Of each shape every so many-th matrix, the first among them: what the rank with the most has.
/// Source: karpathy/nanochat nanochat/muon.py, DistMuon; KellerJordan/modded-nanogpt of 2024-10-17, Muon.step.
std::vector<DataParallelWriter::UnitWeight> DataParallelWriter::own_matrices() const {
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> met;   // by rows and columns, the fewer first
  std::vector<UnitWeight> own;
  for (const Unit& u : stage_.units)
    for (const Weight& w : u.tape->weights) {
      if (!w.trainable || w.parameter_elsewhere || !is_orthogonalised(w)) continue;
      const std::int64_t other = w.elements / w.columns;
      if (met[std::minmax(w.columns, other)]++ % owners() == 0) own.emplace_back(&u, &w);
    }
  return own;
}

std::int64_t DataParallelWriter::orthogonalised_elements() const {
  std::int64_t n = 0;
  for (const Unit& u : stage_.units)
    for (const Weight& w : u.tape->weights) n += w.trainable && !w.parameter_elsewhere && is_orthogonalised(w) ? w.elements : 0;
  return n;
}

void DataParallelWriter::sum_updates(plan::BlockWriter& w) {
  const std::int64_t bytes = 2 * orthogonalised_elements();
  const std::uint32_t flat = Stage::kPersistentSlots - 14;
  w.alloc(flat, bytes, Category::communication);
  w.kernel(builder().kernel({.kind = KernelKind::memset, .bytes_written = bytes, .name = "zero updates"}), host());
  w.collective(builder().collective({CollectiveKind::all_reduce, GroupAxis::data, Bytes{bytes}, "updates of matrices"}), plan::Stream::data_reduce, plan::kAfterCompute | plan::kComputeWaits,
               profile().collective_host);
  w.kernel(builder().kernel({.kind = KernelKind::elementwise, .dtype = DType::fp32, .bytes_read = bytes, .bytes_written = 2 * bytes, .name = "widen updates"}), host());
  w.free(flat);
}

/// Five steps of X <- aX + (bA + cAA)X with A = XX', in 16 bit, for each matrix; three matrices live beside it.
/// Source: Jordan et al. 2024 (Muon), zeropower_via_newtonschulz5.
void DataParallelWriter::orthogonalise(plan::BlockWriter& w) {
  for (const auto& [unit, weight] : own_matrices()) {
    const std::int64_t a = weight->columns, b = weight->elements / weight->columns, rows = std::min(a, b), columns = std::max(a, b);
    auto product = [&](const char* name, std::int64_t n, std::int64_t k) {
      w.kernel(builder().kernel({.kind = KernelKind::gemm, .dtype = DType::bf16, .output_dtype = DType::bf16, .m = rows, .n = n, .k = k, .name = name}), host());
    };
    auto pass = [&](const char* name, std::int64_t elements, int reads) {
      w.kernel(builder().kernel({.kind = KernelKind::elementwise, .bytes_read = reads * elements * 2, .bytes_written = elements * 2, .name = name}), host());
    };
    const std::uint32_t x = Stage::kPersistentSlots - 11, squares = Stage::kPersistentSlots - 12, next = Stage::kPersistentSlots - 13;
    w.alloc(x, rows * columns * 2, Category::temporary);
    pass("normalise", rows * columns, 2);
    for (int step = 0; step < 5; ++step) {
      w.alloc(squares, 2 * rows * rows * 2, Category::temporary);
      product("Newton-Schulz XX'", rows, columns);
      product("Newton-Schulz AA", rows, rows);
      pass("Newton-Schulz bA + cAA", rows * rows, 2);
      w.alloc(next, rows * columns * 2, Category::temporary);
      product("Newton-Schulz BX", columns, rows);
      pass("Newton-Schulz aX + BX", rows * columns, 2);
      w.free(squares);
      w.free(next);
    }
    w.free(x);
  }
}

}  // namespace rehearse::strategies
