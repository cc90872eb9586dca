// Writes nested lists and dictionaries as Python's pickle or as JSON, without holding them as a tree.
// Leaves out what is written (memory_snapshot_writer.cpp) and reading.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace rehearse::report {

class SnapshotSink {
 public:
  virtual ~SnapshotSink() = default;
  virtual void begin_list() = 0;
  virtual void end_list() = 0;
  virtual void begin_dict() = 0;
  virtual void end_dict() = 0;
  /// Inside a dictionary: the next value's key.
  virtual void key(std::string_view name) = 0;
  virtual void value(std::int64_t number) = 0;
  virtual void value(std::string_view text) = 0;
  virtual void value(bool flag) = 0;
  /// A pair of zeros, as a tuple where there are tuples.
  virtual void zero_pair() = 0;
  /// The whole text; call last.
  virtual std::string take() = 0;

  template <typename T>
  void entry(std::string_view name, T v) {
    key(name);
    if constexpr (std::is_same_v<T, bool>) value(v);
    else if constexpr (std::is_integral_v<T>) value(static_cast<std::int64_t>(v));
    else value(std::string_view(v));
  }
};

/// Protocol 2 with the opcodes that PyTorch's viewer knows. Lists are appended in batches of at most 1000 items, because
/// the viewer spreads a batch as the arguments of one call.
std::unique_ptr<SnapshotSink> pickle_sink();
std::unique_ptr<SnapshotSink> json_sink();

}  // namespace rehearse::report
