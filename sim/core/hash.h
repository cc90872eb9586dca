// FNV-1a, the 64-bit version: equal texts give equal numbers on every machine.
// Leaves out what is hashed (sim/report/effective_config.h, sim/cli/sweep_store.h).
#pragma once

#include <cstdint>
#include <string_view>

namespace rehearse {

/// Offset basis and prime: Fowler, Noll, Vo. `from`: the hash of what stands before the text.
constexpr std::uint64_t kHashOfNothing = 0xcbf29ce484222325u;
constexpr std::uint64_t hash_of_text(std::string_view text, std::uint64_t from = kHashOfNothing) {
  for (const char c : text) from = (from ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return from;
}

}  // namespace rehearse
