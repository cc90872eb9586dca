// Ctrl-C during long work: what is under way ends, what is done is written.
// Leaves out how work is cut short (its loop asks) and what is written then.
#pragma once

#include <csignal>

namespace rehearse::cli {

/// While one lives, the first SIGINT or SIGTERM is noted; the second ends the program as ever. A signal that is ignored
/// (a job in the background) stays so. One at a time.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  /// The signal that came; 0: none. From any thread.
  int signal() const;
  /// What a shell calls a program that such a signal ended.
  int exit_code() const { return 128 + signal(); }

 private:
  struct sigaction before_[2];
};

}  // namespace rehearse::cli
