#include "calibrate/probe/team.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "calibrate/probe/device.h"
#include "sim/core/error.h"
#include "tests/unit/calibrate/scratch.h"

namespace rehearse::calibrate::team_test {
namespace {

std::string meeting_file(const char* name) {
  const std::string file = scratch(name);
  std::filesystem::remove(file);
  return file;
}

TEST(Team, FiveProcessesAgreeThroughAFile) {
  const std::string file = meeting_file("meet_five");
  std::ofstream(file) << "1 2 127.0.0.1 end\n";  // left over from a run that crashed: nobody answers there
  constexpr int kSize = 5;
  std::vector<std::vector<double>> largest(kSize);
  std::vector<std::string> words(kSize);
  {
    std::vector<std::jthread> crew;
    for (int r = 0; r < kSize; ++r)
      crew.emplace_back([&, r] {
        const auto team = meet_through_file({r, kSize, r}, file, 20);
        EXPECT_EQ(team->rank(), r);
        for (int round = 0; round < 50; ++round) largest[r] = team->largest({static_cast<double>(r), static_cast<double>(-r), 7.0 + round});
        words[r] = team->from_first(r == 0 ? std::string(100000, 'x') : "mine");
      });
  }
  for (int r = 0; r < kSize; ++r) {
    EXPECT_EQ(largest[r], (std::vector<double>{4, 0, 56}));
    EXPECT_EQ(words[r], std::string(100000, 'x'));
  }
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(Team, WhoDoesNotComeIsSaid) {
  const std::string file = meeting_file("meet_alone");
  EXPECT_THROW(meet_through_file({0, 2, 0}, file, 0.2), NotPossible);
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_THROW(meet_through_file({1, 2, 1}, file, 0.2), NotPossible);
}

TEST(Team, AProcessThatDiesIsNoticedByTheOthers) {
  const std::string file = meeting_file("meet_dying");
  std::jthread other([&] { meet_through_file({1, 2, 1}, file, 20); });
  const auto team = meet_through_file({0, 2, 0}, file, 20);
  other.join();
  EXPECT_THROW(team->largest({1}), std::runtime_error);
}

std::optional<RankInfo> ranks(std::map<std::string, const char*> variables) {
  return rank_from_environment([&](const char* name) -> const char* {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second;
  });
}

TEST(Team, RanksComeFromTheLauncher) {
  EXPECT_FALSE(ranks({}));
  EXPECT_FALSE(ranks({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_LOCALID", "0"}}));
  const auto slurm = ranks({{"SLURM_PROCID", "9"}, {"SLURM_NTASKS", "16"}, {"SLURM_LOCALID", "1"}});
  ASSERT_TRUE(slurm);
  EXPECT_EQ(slurm->rank, 9);
  EXPECT_EQ(slurm->size, 16);
  EXPECT_EQ(slurm->local_rank, 1);
  // mpirun inside a Slurm job: mpirun's count.
  const auto both = ranks({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_LOCALID", "0"}, {"OMPI_COMM_WORLD_RANK", "3"},
                           {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "3"}});
  ASSERT_TRUE(both);
  EXPECT_EQ(both->rank, 3);
}

TEST(Team, HalfASetOfVariablesIsAMistake) {
  EXPECT_THROW(ranks({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), ConfigError);
  EXPECT_THROW(ranks({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}), ConfigError);
  EXPECT_THROW(ranks({{"RANK", "x"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}), ConfigError);
}

}  // namespace
}  // namespace rehearse::calibrate::team_test
