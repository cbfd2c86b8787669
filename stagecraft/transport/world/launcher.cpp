#include "stagecraft/transport/world/launcher.h"

#include <limits>

#include "stagecraft/base/check.h"
#include "stagecraft/transport/environment.h"

namespace stagecraft::detail {
namespace {

int32_t small_number(const char* name, const std::string& text) {
  return static_cast<int32_t>(number_in(name, text, 0, std::numeric_limits<int32_t>::max()));
}

// Reads a launch from variables with these names; nothing if they are not set.
std::optional<Launch> find_launch(Launch::Kind kind, const char* rank, const char* size,
                                  const char* local) {
  const auto own = find_variable(rank);
  const auto all = find_variable(size);
  if (!own || !all) return std::nullopt;
  Launch launch{
      .kind = kind, .rank = small_number(rank, *own), .num_ranks = small_number(size, *all)};
  if (const auto here = find_variable(local)) launch.local_rank = small_number(local, *here);
  require<ArgumentError>(launch.rank < launch.num_ranks, "{}={}, but {}={}", rank, launch.rank,
                         size, launch.num_ranks);
  return launch;
}

// A port that is the same on all ranks and differs for most other steps on the machine.
uint16_t slurm_port() {
  const auto number_of = [](const char* name) {
    const auto text = find_variable(name);
    return text ? static_cast<uint64_t>(
                      number_in(name, *text, 0, std::numeric_limits<int64_t>::max()))
                : 0;
  };
  return static_cast<uint16_t>(
      20000 + (number_of("SLURM_JOB_ID") * 31 + number_of("SLURM_STEP_ID")) % 20000);
}

}  // namespace

std::string name_of(Launch::Kind kind) {
  switch (kind) {
    case Launch::Kind::kTorchrun:
      return "torchrun";
    case Launch::Kind::kOpenMpi:
      return "mpirun of Open MPI";
    case Launch::Kind::kMpich:
      return "mpirun of MPICH";
    case Launch::Kind::kSlurm:
      return "srun";
  }
  return "a launcher";
}

std::optional<Launch> find_launch() {
  using Kind = Launch::Kind;
  // First: torchrun starts processes inside jobs of the other launchers, whose variables it leaves
  // set.
  if (auto launch = find_launch(Kind::kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK")) return launch;
  if (auto launch = find_launch(Kind::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                "OMPI_COMM_WORLD_LOCAL_RANK")) {
    return launch;
  }
  // MPICH's mpirun starts its helper processes with srun, whose variables do not describe the
  // ranks.
  const bool is_hydra = find_variable("HYDI_CONTROL_FD") || find_variable("MPI_LOCALRANKID");
  if (is_hydra) return find_launch(Kind::kMpich, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID");
  // A batch script has SLURM_PROCID too, but no step of its own.
  if (auto launch =
          find_launch(Kind::kSlurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")) {
    return launch;
  }
  return find_launch(Kind::kMpich, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID");
}

std::string first_host(const std::string& hosts) {
  const std::size_t end = hosts.find_first_of(",[");
  if (end == std::string::npos || hosts[end] == ',') return hosts.substr(0, end);
  const std::size_t close = hosts.find(']', end);
  require<ArgumentError>(close != std::string::npos, "\"{}\" is not a list of hosts", hosts);
  const std::size_t number_end = hosts.find_first_of(",-]", end + 1);
  // The text after the brackets belongs to the name.
  const std::size_t rest_end = hosts.find_first_of(",[", close + 1);
  const std::size_t rest = (rest_end == std::string::npos ? hosts.size() : rest_end) - (close + 1);
  return hosts.substr(0, end) + hosts.substr(end + 1, number_end - end - 1) +
         hosts.substr(close + 1, rest);
}

JoinOptions find_store(const Launch& launch) {
  if (launch.kind == Launch::Kind::kTorchrun) return JoinOptions::from_environment();
  JoinOptions place;
  place.rank = Rank(launch.rank);
  place.num_ranks = launch.num_ranks;
  place.local_rank = launch.local_rank;
  if (launch.kind == Launch::Kind::kSlurm) place.port = slurm_port();
  if (const auto port = find_variable("MASTER_PORT")) {
    place.port = static_cast<uint16_t>(
        number_in("MASTER_PORT", *port, 1, std::numeric_limits<uint16_t>::max()));
  }
  if (const auto host = find_variable("MASTER_ADDR")) {
    place.host = *host;
  } else if (launch.kind == Launch::Kind::kSlurm && find_variable("SLURM_STEP_NUM_NODES") != "1") {
    auto hosts = find_variable("SLURM_STEP_NODELIST");
    if (!hosts) hosts = find_variable("SLURM_NODELIST");
    require<ArgumentError>(
        hosts.has_value(),
        "neither MASTER_ADDR nor SLURM_STEP_NODELIST is set: was this process started by srun?");
    place.host = first_host(*hosts);
  }
  read_addresses(place);
  return place;
}

}  // namespace stagecraft::detail
