#include "calibrate/paper_gpu/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace rehearse::paper_gpu {
namespace {

struct Range {
  std::size_t bytes;
  Place place;
};
struct World {
  std::mutex changing;
  std::map<char*, Range> ranges;
  std::size_t total = [] {
    const char* gib = std::getenv("PAPER_GPU_GIB");
    return static_cast<std::size_t>((gib == nullptr ? 80.0 : std::atof(gib)) * (1 << 30));
  }();
  std::size_t used = 0;
};
World& world() {
  static World& w = *new World;  // outlives whoever frees memory while the process ends
  return w;
}
constexpr std::size_t kPage = std::size_t{2} << 20;  // cudaMalloc hands out 2 MiB pages
constexpr std::size_t kCarried = std::size_t{1} << 20;

std::size_t in_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

void* take(std::size_t bytes, Place place) {
  World& w = world();
  const std::lock_guard lock(w.changing);
  bytes = in_pages(bytes == 0 ? 1 : bytes);
  if (place == Place::device && w.used + bytes > w.total) return nullptr;
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  if (place == Place::device) w.used += bytes;
  w.ranges[static_cast<char*>(address)] = {bytes, place};
  return address;
}

bool give_back(void* address) {
  World& w = world();
  const std::lock_guard lock(w.changing);
  const auto range = w.ranges.find(static_cast<char*>(address));
  if (range == w.ranges.end()) return false;
  if (range->second.place == Place::device) w.used -= range->second.bytes;
  munmap(address, range->second.bytes);
  w.ranges.erase(range);
  return true;
}

Place place_of(const void* address) {
  World& w = world();
  const std::lock_guard lock(w.changing);
  auto range = w.ranges.upper_bound(const_cast<char*>(static_cast<const char*>(address)));
  if (range == w.ranges.begin()) return Place::nowhere;
  --range;
  return static_cast<const char*>(address) < range->first + range->second.bytes ? range->second.place : Place::nowhere;
}

std::size_t device_total() { return world().total; }
std::size_t device_used() {
  const std::lock_guard lock(world().changing);
  return world().used;
}

bool take_physical(std::size_t bytes) {
  World& w = world();
  const std::lock_guard lock(w.changing);
  if (w.used + bytes > w.total) return false;
  w.used += bytes;
  return true;
}
void give_physical_back(std::size_t bytes) {
  const std::lock_guard lock(world().changing);
  world().used -= bytes;
}

void carry(void* to, const void* from, std::size_t bytes) {
  if (bytes <= kCarried && to != nullptr && from != nullptr) std::memmove(to, from, bytes);
}

}  // namespace rehearse::paper_gpu
