#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace stagecraft::detail {

/// Who started this process as one of several, and what it says of it.
struct Launch {
  enum class Kind { kTorchrun, kOpenMpi, kMpich, kSlurm };

  Kind kind = Kind::kTorchrun;
  int32_t rank = 0;
  int32_t num_ranks = 1;
  int32_t local_rank = 0;
};

/// "torchrun", "mpirun of Open MPI", ...
std::string name_of(Launch::Kind kind);

/// Reads the environment: torchrun's RANK and WORLD_SIZE, then Open MPI's OMPI_COMM_WORLD_RANK,
/// then PMI_RANK where MPICH's mpirun has set it, then srun's SLURM_PROCID, then PMI_RANK of
/// whomever. Nothing where none of them is there; ArgumentError for numbers that are none.
std::optional<Launch> find_launch();

/// The first host of a list as Slurm writes them: "node[003-005,9],other" is "node003".
std::string first_host(const std::string& hosts);

/// Where ranks meet that want to: MASTER_ADDR and MASTER_PORT, as far as they are set. Otherwise,
/// of a Slurm step: on its first host (of one host alone, at its loopback), at a port that its
/// numbers give; of others: on this machine.
/// ArgumentError where Slurm has not said it.
struct MeetingPlace {
  std::string host = "127.0.0.1";
  uint16_t port = 29500;
};
MeetingPlace find_meeting_place(Launch::Kind kind);

}  // namespace stagecraft::detail
