#include "calibrate/probe/team.h"

#include <array>
#include <charconv>
#include <cstring>

#include "sim/core/error.h"

namespace rehearse::calibrate {
namespace {

class SingleProcess final : public Team {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<double> largest(const std::vector<double>& mine) override { return mine; }
  std::string from_first(const std::string& mine) override { return mine; }
};

struct Launcher {
  const char *name, *rank, *size, *local_rank;
};
// Ours first; torchrun's and Slurm's last, which may be set around an mpirun.
constexpr std::array<Launcher, 5> kLaunchers = {{
    {"rehearse-probe", "REHEARSE_RANK", "REHEARSE_SIZE", "REHEARSE_LOCAL_RANK"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
}};

}  // namespace

std::unique_ptr<Team> single_process() { return std::make_unique<SingleProcess>(); }

std::optional<RankInfo> rank_from_environment(const std::function<const char*(const char*)>& get) {
  for (const Launcher& launcher : kLaunchers) {
    if (get(launcher.rank) == nullptr) continue;
    const auto number = [&](const char* name, int least, int below) {
      const char* text = get(name);
      int value = -1;
      const char* end = text == nullptr ? nullptr : text + std::strlen(text);
      if (text == nullptr || std::from_chars(text, end, value).ptr != end || value < least || value >= below)
        throw ConfigError(Diagnostic{{}, name, text == nullptr ? std::string("is not set, though ") + launcher.rank + " is"
                                                               : "\"" + std::string(text) + "\" is no such number",
                                     std::string("It is what ") + launcher.name + " sets for each process; set all three, or unset " + launcher.rank, ""});
      return value;
    };
    RankInfo out;
    out.size = number(launcher.size, 1, 1 << 20);
    out.rank = number(launcher.rank, 0, out.size);
    out.local_rank = number(launcher.local_rank, 0, 1024);
    if (out.size == 1) return std::nullopt;
    return out;
  }
  return std::nullopt;
}

}  // namespace rehearse::calibrate
