#include "sim/plan/builder.h"

#include <functional>

#include "sim/core/contract.h"

namespace rehearse::plan {

std::uint32_t BlockWriter::new_slot(std::string name) {
  block_.slot_names.push_back(std::move(name));
  return block_.slots++;
}

void BlockWriter::alloc(std::uint32_t slot, std::int64_t bytes, Category category, Frame frame, Stream stream) {
  EXPECTS(bytes >= 0);
  block_.memory.push_back({Opcode::alloc, stream, frame, static_cast<std::uint8_t>(category), slot, bytes});
}

void BlockWriter::alloc_once(std::uint32_t slot, std::int64_t bytes, Category category) {
  EXPECTS(bytes >= 0);
  block_.memory.push_back({Opcode::alloc_once, Stream::compute, Frame::own, static_cast<std::uint8_t>(category), slot, bytes});
}

void BlockWriter::free(std::uint32_t slot, Frame frame) {
  block_.memory.push_back({Opcode::free, Stream::compute, frame, 0, slot, 0});
}

void BlockWriter::move(std::uint32_t to, std::uint32_t from, Frame frame) {
  block_.memory.push_back({Opcode::move, Stream::compute, frame, 0, to, static_cast<std::int64_t>(from)});
}

void BlockWriter::record_stream(std::uint32_t slot, Stream stream, Frame frame) {
  std::int64_t works = 0;
  for (const Instruction& i : block_.timing)
    works += i.stream == stream && (i.op == Opcode::kernel || i.op == Opcode::collective || i.op == Opcode::send || i.op == Opcode::recv || i.op == Opcode::copy) ? 1 : 0;
  block_.memory.push_back({Opcode::record_stream, stream, frame, 0, slot, works});
}

namespace {

std::uint64_t mix(std::uint64_t h, std::uint64_t v) { return (h ^ (v + 0x9e3779b97f4a7c15ULL + (h << 6) + (h >> 2))) * 0xff51afd7ed558ccdULL; }

std::uint64_t hash_of(const model::KernelSpec& s) {
  std::uint64_t h = std::hash<std::string>{}(s.name);
  for (std::int64_t v : {static_cast<std::int64_t>(s.kind), static_cast<std::int64_t>(s.role), static_cast<std::int64_t>(s.dtype), s.batch, s.m, s.n, s.k,
                         s.heads, s.query_length, s.key_length, s.head_dim, s.bytes_read, s.bytes_written, s.elements})
    h = mix(h, static_cast<std::uint64_t>(v));
  return h;
}

template <typename Spec>
std::uint32_t intern(std::vector<Spec>& all, std::unordered_multimap<std::uint64_t, std::uint32_t>& ids, std::uint64_t hash, const Spec& spec) {
  const auto [first, last] = ids.equal_range(hash);
  for (auto it = first; it != last; ++it)
    if (all[it->second] == spec) return it->second;
  all.push_back(spec);
  const auto id = static_cast<std::uint32_t>(all.size() - 1);
  ids.emplace(hash, id);
  return id;
}

template <typename Spec>
std::uint32_t intern_few(std::vector<Spec>& all, const Spec& spec) {
  for (std::uint32_t i = 0; i < all.size(); ++i)
    if (all[i] == spec) return i;
  all.push_back(spec);
  return static_cast<std::uint32_t>(all.size() - 1);
}

}  // namespace

std::uint32_t PlanBuilder::kernel(const model::KernelSpec& spec) { return intern(plan_.kernels, kernel_ids_, hash_of(spec), spec); }

std::uint32_t PlanBuilder::collective(const CollectiveSpec& spec) {
  std::uint64_t h = std::hash<std::string>{}(spec.name);
  for (std::int64_t v : {static_cast<std::int64_t>(spec.kind), static_cast<std::int64_t>(spec.axis), spec.bytes.value}) h = mix(h, static_cast<std::uint64_t>(v));
  return intern(plan_.collectives, collective_ids_, h, spec);
}

std::uint32_t PlanBuilder::message(const MessageSpec& spec) { return intern_few(plan_.messages, spec); }
std::uint32_t PlanBuilder::copy(const CopySpec& spec) { return intern_few(plan_.copies, spec); }

std::uint32_t PlanBuilder::host_work(const HostSpec& spec) { return intern_few(plan_.host_works, spec); }

std::uint32_t PlanBuilder::add_block(Block block) {
  plan_.blocks.push_back(std::move(block));
  return static_cast<std::uint32_t>(plan_.blocks.size() - 1);
}

std::uint32_t FrameAllocator::acquire(std::uint32_t slots) {
  auto& bases = free_by_size_[slots];
  if (!bases.empty()) {
    const std::uint32_t base = bases.back();
    bases.pop_back();
    return base;
  }
  const std::uint32_t base = total_;
  total_ += slots;
  return base;
}

void FrameAllocator::release(std::uint32_t base, std::uint32_t slots) { free_by_size_[slots].push_back(base); }

}  // namespace rehearse::plan
