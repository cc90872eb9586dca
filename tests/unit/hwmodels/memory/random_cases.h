// Settings for the random comparisons and what PyTorch's own allocator did with the same operations under
// them. Leaves out the operations (random_program.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hwmodels/memory/allocator_types.h"

namespace rehearse::hwmodels::test {

/// Recorded from libc10_cuda.so of the PyTorch 2.8.0 wheel (cp311, CUDA 12.8). The library ran on the CPU
/// over a stand-in for the CUDA runtime and driver that only counts bytes, hands out ascending addresses and
/// answers event queries as the program says; addresses therefore compare one to one. Every address, and
/// every 100 operations all statistics, agreed; only the peak of inactive_split may differ where several
/// events finish at once (PyTorch visits streams in hash order).
struct RecordedRun {
  std::uint64_t addresses;  // hash over all addresses
  std::int64_t reserved, reserved_peak, allocated_peak, retries, ooms, device_allocs, device_frees;
};

struct RandomCase {
  std::string name;
  AllocatorSettings settings;
  int operations;
  bool moves_limit;
  std::optional<RecordedRun> recorded;
};

inline std::array<std::int32_t, 16> all_divisions(std::int32_t divisions) {
  std::array<std::int32_t, 16> out{};
  out.fill(divisions);
  return out;
}

inline const std::vector<RandomCase> kRandomCases{
    {"roomy",
     {.limit = 80_GiB},
     400'000,
     false,
     RecordedRun{0x6d1082a3c059721b, 10248781824, 10248781824, 8796487168, 0, 0, 1686, 1367}},
    {"tight",
     {.limit = 900_MiB},
     400'000,
     false,
     RecordedRun{0x87e3fbfbb7d541db, 398458880, 943718400, 871962112, 26757, 24650, 9493, 9477}},
    {"tight_moving_limit",
     {.limit = 1000_MiB},
     300'000,
     true,
     RecordedRun{0x405eeb50d4ce1883, 658505728, 1048576000, 982926336, 19156, 17642, 7085, 7064}},
    {"expandable",
     {.limit = 80_GiB, .expandable_segments = true},
     400'000,
     false,
     RecordedRun{0x4fa6a3940440221b, 9787408384, 9787408384, 8698413568, 0, 0, 1718, 342}},
    {"expandable_tight",
     {.limit = 800_MiB, .expandable_segments = true},
     400'000,
     false,
     RecordedRun{0x087a4fc9bbd57e39, 367001600, 838860800, 776221696, 27700, 25661, 8176, 6987}},
    {"expandable_moving_limit",
     {.limit = 900_MiB, .device_total = 2_GiB, .expandable_segments = true},
     300'000,
     true,
     RecordedRun{0x3d48a520cf2a04bb, 624951296, 939524096, 852667904, 20150, 18629, 6278, 5247}},
    {"max_split",
     {.limit = 80_GiB, .max_split_size = 21_MiB},
     400'000,
     false,
     RecordedRun{0xc7443de2e85f8e1b, 10986979328, 10986979328, 9161526784, 0, 0, 3058, 2613}},
    {"max_split_tight",
     {.limit = 1000_MiB, .max_split_size = 24_MiB, .max_non_split_rounding = 30_MiB},
     400'000,
     false,
     RecordedRun{0x25b1a543c320efa3, 255852544, 1048576000, 1006195200, 27153, 23068, 18374, 18367}},
    {"divisions",
     {.limit = 80_GiB, .roundup_power2_divisions = all_divisions(8)},
     400'000,
     false,
     RecordedRun{0x4239769c9666301b, 10494148608, 10494148608, 9143655936, 0, 0, 1757, 1420}},
    {"divisions_mixed",
     {.limit = 1000_MiB, .roundup_power2_divisions = {0, 4, 2, 1, 16, 8}},
     300'000,
     false,
     RecordedRun{0x3e0138aebc3ff319, 1025507328, 1048576000, 1012431872, 19177, 17439, 7514, 7480}},
    {"garbage_collection",
     {.limit = 2_GiB, .memory_fraction = 0.5, .garbage_collection_threshold = 0.6},
     400'000,
     false,
     RecordedRun{0x097b99b75cdec0f1, 562036736, 1073741824, 1013390336, 22979, 22638, 11115, 11088}},
    {"fraction_expandable",
     {.limit = 2_GiB, .expandable_segments = true, .memory_fraction = 0.5},
     300'000,
     false,
     RecordedRun{0x6620b286862a1531, 343932928, 1092616192, 1007516672, 18416, 16809, 6206, 5551}},
    {"large_segments", {.limit = 1500_MiB, .large_segment_size = 64_MiB}, 300'000, false, std::nullopt},
};

}  // namespace rehearse::hwmodels::test
