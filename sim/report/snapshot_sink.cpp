#include "sim/report/snapshot_sink.h"

#include <limits>
#include <unordered_map>
#include <vector>

#include "sim/report/json_text.h"

namespace rehearse::report {
namespace {

// Opcodes: CPython Lib/pickletools.py.
class PickleSink final : public SnapshotSink {
 public:
  PickleSink() { out_ = "\x80\x02"; }

  void begin_list() override {
    begin_value();
    out_ += "](";  // EMPTY_LIST MARK
    open_.push_back(0);
  }
  void end_list() override {
    out_ += 'e';  // APPENDS
    open_.pop_back();
  }
  void begin_dict() override {
    begin_value();
    out_ += "}(";  // EMPTY_DICT MARK
    open_.push_back(kDict);
  }
  void end_dict() override {
    out_ += 'u';  // SETITEMS
    open_.pop_back();
  }
  void key(std::string_view name) override { text(name); }
  void value(std::int64_t n) override {
    begin_value();
    if (n >= 0 && n < 256) {
      out_ += 'K';
      little_endian(static_cast<std::uint64_t>(n), 1);
    } else if (n >= 0 && n < 65536) {
      out_ += 'M';
      little_endian(static_cast<std::uint64_t>(n), 2);
    } else if (n >= std::numeric_limits<std::int32_t>::min() && n <= std::numeric_limits<std::int32_t>::max()) {
      out_ += 'J';
      little_endian(static_cast<std::uint64_t>(n), 4);
    } else {
      out_ += "\x8a\x08";  // LONG1 of 8 bytes
      little_endian(static_cast<std::uint64_t>(n), 8);
    }
  }
  void value(std::string_view s) override {
    begin_value();
    text(s);
  }
  void value(bool flag) override {
    begin_value();
    out_ += flag ? '\x88' : '\x89';
  }
  void zero_pair() override {
    begin_value();
    out_ += std::string_view("K\0K\0\x86", 5);  // BININT1 0, BININT1 0, TUPLE2
  }
  std::string take() override { return std::move(out_) + "."; }

 private:
  static constexpr int kDict = -1;
  static constexpr int kBatch = 1000;

  /// In a list: closes a full batch and opens the next.
  void begin_value() {
    if (open_.empty() || open_.back() == kDict) return;
    if (open_.back() == kBatch) {
      out_ += "e(";
      open_.back() = 0;
    }
    ++open_.back();
  }
  /// The first texts are remembered under a byte, so that keys are not repeated in every event.
  void text(std::string_view s) {
    if (const auto it = memo_.find(std::string(s)); it != memo_.end()) {
      out_ += 'h';  // BINGET
      out_ += static_cast<char>(it->second);
      return;
    }
    out_ += 'X';  // BINUNICODE
    little_endian(s.size(), 4);
    out_ += s;
    if (memo_.size() > 255) return;
    out_ += 'q';  // BINPUT
    out_ += static_cast<char>(memo_.size());
    memo_.emplace(s, static_cast<unsigned char>(memo_.size()));
  }
  void little_endian(std::uint64_t n, int bytes) {
    for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(n >> (8 * i) & 0xff);
  }

  std::string out_;
  std::vector<int> open_;  // items in the current batch of each open list; kDict for dictionaries
  std::unordered_map<std::string, unsigned char> memo_;
};

class JsonSink final : public SnapshotSink {
 public:
  void begin_list() override { begin('['); }
  void end_list() override { end(']'); }
  void begin_dict() override { begin('{'); }
  void end_dict() override { end('}'); }
  void key(std::string_view name) override {
    separate();
    out_ += json_text(name) + ": ";
    after_key_ = true;
  }
  void value(std::int64_t n) override { put(std::to_string(n)); }
  void value(std::string_view s) override { put(json_text(s)); }
  void value(bool flag) override { put(flag ? "true" : "false"); }
  void zero_pair() override { put("[0, 0]"); }
  std::string take() override { return std::move(out_) + "\n"; }

 private:
  void separate() {
    if (!after_key_ && !first_) out_ += ", ";
    after_key_ = first_ = false;
  }
  void put(std::string_view text) {
    separate();
    out_ += text;
  }
  void begin(char bracket) {
    separate();
    out_ += bracket;
    first_ = true;
  }
  void end(char bracket) {
    out_ += bracket;
    first_ = false;
  }

  std::string out_;
  bool first_ = true, after_key_ = false;
};

}  // namespace

std::unique_ptr<SnapshotSink> pickle_sink() { return std::make_unique<PickleSink>(); }
std::unique_ptr<SnapshotSink> json_sink() { return std::make_unique<JsonSink>(); }

}  // namespace rehearse::report
