// Ends the process when one case hangs: NCCL on a misconfigured cluster waits for ever, and nothing can be thrown into it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

namespace rehearse::calibrate {

class Watchdog {
 public:
  /// After `limit_s` seconds between begin() and end(), `last_words` is called on the watchdog's thread, then the process
  /// ends with `code`, without destructors: they would wait for what hangs.
  Watchdog(double limit_s, int code, std::function<void()> last_words)
      : limit_(limit_s), code_(code), last_words_(std::move(last_words)), thread_([this](std::stop_token stop) { watch(stop); }) {}

  void begin() { set(true); }
  void end() { set(false); }

 private:
  void set(bool busy) {
    const std::lock_guard lock(mutex_);
    busy_ = busy;
    ++round_;
    changed_.notify_all();
  }
  void watch(std::stop_token stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      const auto round = round_;
      const auto moved_on = [&] { return round_ != round; };
      if (!busy_) {
        changed_.wait(lock, stop, moved_on);
      } else if (!changed_.wait_for(lock, stop, std::chrono::duration<double>(limit_), moved_on) && !stop.stop_requested()) {
        last_words_();
        std::_Exit(code_);
      }
    }
  }

  double limit_;
  int code_;
  std::function<void()> last_words_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool busy_ = false;
  unsigned long round_ = 0;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace rehearse::calibrate
