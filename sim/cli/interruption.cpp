#include "sim/cli/interruption.h"

#include <atomic>
#include <cstddef>

namespace rehearse::cli {
namespace {

std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may touch nothing else");

constexpr int kSignals[] = {SIGINT, SIGTERM};

}  // namespace

Interruption::Interruption() {
  noted = 0;
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    struct sigaction note {};
    note.sa_handler = [](int signal) { noted = signal; };
    note.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
    sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &note, nullptr);
  }
}

Interruption::~Interruption() {
  for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

int Interruption::signal() const { return noted; }

}  // namespace rehearse::cli
