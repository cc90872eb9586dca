#include "sim/core/suggestion.h"

#include <gtest/gtest.h>

namespace rehearse::suggestion_test {
namespace {

const std::vector<std::string> kKinds{"none", "ddp", "zero1", "zero2", "fsdp1", "fsdp2"};
const std::vector<std::string> kGpus{"a100-80gb-sxm", "h100-pcie", "h100-sxm", "h200-sxm"};

TEST(Suggestion, TheNearestIsMeant) {
  EXPECT_EQ(did_you_mean("h100-smx", kGpus), "Did you mean h100-sxm?");
  EXPECT_EQ(did_you_mean("H200_SXM", kGpus, "See the list"), "Did you mean h200-sxm? See the list");
  EXPECT_EQ(nearest_name("h100-smx", kGpus), "h100-sxm");
}

// One letter away from two names: neither is meant more than the other.
TEST(Suggestion, AllThatAreAsNearAreNamed) {
  EXPECT_EQ(did_you_mean("fsdp", kKinds), "Did you mean fsdp1 or fsdp2?");
  EXPECT_EQ(did_you_mean("fsdp3", kKinds), "Did you mean fsdp1 or fsdp2?");
  EXPECT_EQ(did_you_mean("fdsp2", kKinds), "Did you mean fsdp2?");
}

// "h100" is five letters and more from every name, "micro_batch" four.
TEST(Suggestion, NamesThatBeginWithTheWordAreNamed) {
  EXPECT_EQ(did_you_mean("h100", kGpus), "Did you mean h100-pcie or h100-sxm?");
  EXPECT_EQ(did_you_mean("a100", {"a100-80gb-pcie", "a100-80gb-sxm", "a10g"}), "Did you mean a100-80gb-pcie or a100-80gb-sxm?");
  EXPECT_EQ(did_you_mean("kin", {"kind", "kin-folk"}), "Did you mean kin-folk?");
  EXPECT_EQ(did_you_mean("micro_batch", {"global_batch_size", "micro_batch_size"}), "Did you mean micro_batch_size?");
  EXPECT_EQ(did_you_mean("bucket_size", {"kind", "bucket"}), "Did you mean bucket?");
}

TEST(Suggestion, NothingIsSaidOfWordsThatAreLikeNone) {
  EXPECT_EQ(did_you_mean("tensorflow", kKinds, "Known: none, ddp"), "Known: none, ddp");
  EXPECT_EQ(did_you_mean("", kKinds), "");
  EXPECT_EQ(did_you_mean("llama", {"llama-a-1", "llama-b-2", "llama-c-3", "llama-d-4", "llama-e-5", "llama-f-6"}, "See the list"), "See the list");
  EXPECT_EQ(did_you_mean(std::string(300, 'a'), {std::string(299, 'a')}), "");
}

}  // namespace
}  // namespace rehearse::suggestion_test
