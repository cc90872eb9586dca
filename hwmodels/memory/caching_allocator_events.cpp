// Frees that wait for other streams: one event per stream named by record_stream, seen as done at the next
// allocation or waited for when the cache is given back.
#include "hwmodels/memory/caching_allocator.h"
#include "sim/core/contract.h"

namespace rehearse::hwmodels {

void CachingAllocator::record_stream(BlockId id, StreamId stream) {
  EXPECTS(stream.value < kMaxStreams);
  if (id == BlockId{}) return;
  if (stream_of(checked(id).pool) != stream)
    blocks_[id.index].other_streams |= std::uint64_t{1} << stream.value;
}

void CachingAllocator::complete_events(StreamId stream, EventToken up_to) {
  EXPECTS(up_to <= last_token_, "no free has recorded this event yet");
  if (stream.value >= queues_.size()) return;
  EventQueue& queue = queues_[stream.value];
  if (queue.completed < up_to) queue.completed = up_to;
  events_completed_ |= queue.head < queue.events.size();
}

void CachingAllocator::process_events() {
  events_completed_ = false;
  for (EventQueue& queue : queues_) {
    while (queue.head < queue.events.size() && queue.events[queue.head].token <= queue.completed) {
      const std::uint32_t index = queue.events[queue.head++].block;
      if (--blocks_[index].events == 0) return_to_pool(index);
    }
    if (queue.head * 2 >= queue.events.size()) {  // keeps the queue short at a constant cost per event
      queue.events.erase(queue.events.begin(),
                         queue.events.begin() + static_cast<std::ptrdiff_t>(queue.head));
      queue.head = 0;
    }
  }
}

void CachingAllocator::synchronize_events() {
  ++statistics_.synchronizations;
  for (EventQueue& queue : queues_) {
    for (; queue.head < queue.events.size(); ++queue.head) {
      const std::uint32_t index = queue.events[queue.head].block;
      if (--blocks_[index].events == 0) return_to_pool(index);
    }
    queue.events.clear();
    queue.head = 0;
    queue.completed = last_token_;
  }
  events_completed_ = false;
}

}  // namespace rehearse::hwmodels
