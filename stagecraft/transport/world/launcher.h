#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stagecraft/transport/join_options.h"

namespace stagecraft::detail {

/// The launcher that started this process as one of several, and what it says about the process.
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
/// then PMI_RANK if MPICH's mpirun has set it, then srun's SLURM_PROCID, then PMI_RANK of any other
/// launcher. Nothing if none of them is set; ArgumentError for values that are not numbers.
std::optional<Launch> find_launch();

/// The first host of a list as Slurm writes them: "node[003-005,9],other" is "node003".
std::string first_host(const std::string& hosts);

/// The options with which a process of this launcher joins at c10d's store: rank, number of ranks,
/// MASTER_ADDR and MASTER_PORT, and the variables that JoinOptions names. torchrun sets all of
/// them. Defaults for a Slurm step: its first host (the loopback address if it has one host only)
/// and a port derived from the numbers of job and step. Defaults for others: the loopback address
/// and port 29500. ArgumentError if a variable is missing.
JoinOptions find_store(const Launch& launch);

}  // namespace stagecraft::detail
