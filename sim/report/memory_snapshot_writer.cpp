#include "sim/report/memory_snapshot_writer.h"

#include <fmt/format.h>

#include <unordered_map>

#include "hwmodels/memory/caching_allocator.h"
#include "sim/report/snapshot_sink.h"

namespace rehearse::report {
namespace {

using hwmodels::AllocatorAction;

/// The viewer colours these; any other word would make it stop.
std::string_view word_of(plan::Category c) {
  switch (c) {
    case plan::Category::parameter: return "PARAMETER";
    case plan::Category::gradient: return "GRADIENT";
    case plan::Category::optimizer: return "OPTIMIZER_STATE";
    case plan::Category::activation: return "ACTIVATION";
    default: return "TEMPORARY";
  }
}

std::string_view word_of(AllocatorAction a) {
  switch (a) {
    case AllocatorAction::alloc: return "alloc";
    case AllocatorAction::free_requested: return "free_requested";
    case AllocatorAction::free_completed: return "free_completed";
    case AllocatorAction::segment_alloc: return "segment_alloc";
    case AllocatorAction::segment_free: return "segment_free";
    case AllocatorAction::segment_map: return "segment_map";
    case AllocatorAction::segment_unmap: return "segment_unmap";
    case AllocatorAction::oom: return "oom";
  }
  return "?";
}

std::string_view word_of(hwmodels::BlockState s) {
  switch (s) {
    case hwmodels::BlockState::active_allocated: return "active_allocated";
    case hwmodels::BlockState::active_pending_free: return "active_pending_free";
    case hwmodels::BlockState::inactive: return "inactive";
  }
  return "?";
}

/// Writes events as they happen, and the segments at the end.
class Recorder final : public executor::MemoryObserver {
 public:
  Recorder(const plan::Plan& plan, SnapshotSink& sink) : plan_(plan), sink_(sink) {
    sink_.begin_dict();
    sink_.key("device_traces");
    sink_.begin_list();
    sink_.begin_list();
    // The viewer stops at the first category it does not know unless one event has exactly this one.
    current_ = {"(so that the viewer shows categories)", "unknown"};
    for (const AllocatorAction action : {AllocatorAction::alloc, AllocatorAction::free_requested, AllocatorAction::free_completed}) event(action, 512, 512, 0);
  }

  void on_tensor(int step, const plan::Call& call, const std::string& tensor, plan::Category category) override {
    std::string where = step < 0 ? "setup" : fmt::format("step {}", step + 1);
    if (call.micro_batch >= 0) where += fmt::format(", micro-batch {}", call.micro_batch);
    if (call.layer >= 0) where += fmt::format(", layer {}", call.layer);
    file_ = plan_.blocks[call.block].name;
    // Slots of other frames have no name of their own: the block says what it is about.
    current_ = {fmt::format("{} ({}, {})", tensor.starts_with("slot ") ? file_ : tensor, where, name_of(call.phase)), word_of(category)};
  }

  void on(const hwmodels::AllocatorEvent& e) override {
    if (e.action == AllocatorAction::alloc) live_[e.address] = {current_, file_};
    const bool freed = e.action == AllocatorAction::free_requested || e.action == AllocatorAction::free_completed;
    if (const auto it = live_.find(e.address); freed && it != live_.end()) {
      current_ = it->second.tensor;
      file_ = it->second.file;
      if (e.action == AllocatorAction::free_completed) live_.erase(it);
    }
    event(e.action, e.address, e.size.value, e.stream.value);
  }

  void at_end(const hwmodels::CachingAllocator& allocator) override {
    sink_.end_list();
    sink_.end_list();
    sink_.key("segments");
    sink_.begin_list();
    for (const hwmodels::SegmentSnapshot& s : allocator.snapshot()) segment(s);
    sink_.end_list();
    sink_.key("allocator_settings");
    sink_.begin_dict();
    sink_.entry("expandable_segments", allocator.settings().expandable_segments);
    sink_.end_dict();
    sink_.end_dict();
  }

 private:
  struct Tensor {
    std::string name;
    std::string_view category;
  };
  struct Live {
    Tensor tensor;
    std::string file;
  };

  void frames(const Tensor& tensor, const std::string& file) {
    sink_.key("frames");
    sink_.begin_list();
    sink_.begin_dict();
    sink_.entry("name", std::string_view(tensor.name));
    sink_.entry("filename", std::string_view(file));
    sink_.entry("line", 0);
    sink_.end_dict();
    sink_.end_list();
  }

  void event(AllocatorAction action, std::uint64_t address, std::int64_t size, int stream) {
    sink_.begin_dict();
    sink_.entry("action", word_of(action));
    sink_.entry("addr", static_cast<std::int64_t>(address));
    sink_.entry("size", size);
    sink_.entry("stream", stream);
    sink_.entry("time_us", ++events_);
    sink_.entry("category", current_.category);
    frames(current_, file_);
    sink_.end_dict();
  }

  void segment(const hwmodels::SegmentSnapshot& s) {
    sink_.begin_dict();
    sink_.entry("device", 0);
    sink_.entry("address", static_cast<std::int64_t>(s.address));
    sink_.entry("total_size", s.total.value);
    sink_.entry("allocated_size", s.allocated.value);
    sink_.entry("active_size", s.active.value);
    sink_.entry("requested_size", s.requested.value);
    sink_.entry("stream", static_cast<int>(s.stream.value));
    sink_.entry("segment_type", s.small_pool ? "small" : "large");
    sink_.key("segment_pool_id");
    sink_.zero_pair();
    sink_.entry("is_expandable", s.expandable);
    sink_.key("frames");
    sink_.begin_list();
    sink_.end_list();
    sink_.key("blocks");
    sink_.begin_list();
    for (const hwmodels::BlockSnapshot& b : s.blocks) {
      sink_.begin_dict();
      sink_.entry("address", static_cast<std::int64_t>(b.address));
      sink_.entry("size", b.size.value);
      sink_.entry("requested_size", b.requested.value);
      sink_.entry("state", word_of(b.state));
      const auto it = live_.find(b.address);
      if (it != live_.end()) {
        frames(it->second.tensor, it->second.file);
      } else {
        sink_.key("frames");
        sink_.begin_list();
        sink_.end_list();
      }
      sink_.end_dict();
    }
    sink_.end_list();
    sink_.end_dict();
  }

  const plan::Plan& plan_;
  SnapshotSink& sink_;
  Tensor current_;
  std::string file_ = "rehearse";
  std::unordered_map<std::uint64_t, Live> live_;  // looked up only, never walked: its order does not matter
  std::int64_t events_ = 0;
};

}  // namespace

std::string write_memory_snapshot(const Scenario& s, const Result& r, SnapshotFormat format) {
  const auto sink = format == SnapshotFormat::pickle ? pickle_sink() : json_sink();
  Recorder recorder(r.plan, *sink);
  executor::MemoryOptions options;
  options.allocator = scenario::allocator_settings(s, r.classes[r.fullest_class]);
  options.allocator.limit = std::max(options.allocator.limit, 1_GiB);  // an OOM, not a contract, where nothing is left
  options.observer = &recorder;
  std::optional<executor::DeviceProgress> progress;
  const scenario::ClassResult& fullest = r.classes[r.fullest_class];
  if (!fullest.timing.call_device.empty()) options.progress = &progress.emplace(r.plan, r.plan.classes[r.fullest_class].program, fullest.timing);
  run_memory(r.plan, r.fullest_class, options);
  return sink->take();
}

}  // namespace rehearse::report
