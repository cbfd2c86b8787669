#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "stagecraft/transport/mpi/mpi_progress.h"
#include "stagecraft/transport/wire/byte_transport.h"
#include "stagecraft/transport/wire/peer_processes.h"

namespace stagecraft::detail {

/// The largest tag that MPI must support: the tags of the wire protocol, with the number of the
/// world above them.
constexpr ByteTransport::Tag kLastMpiTag = (1 << 28) - 1;

/// A byte transport over an MPI communicator, which it takes over. `processes[i]` is the process of
/// rank i. `world` is the same on all ranks and differs from recent worlds of the same ranks: MPI
/// keeps a message to a rank that has left, and a later communicator with the same context must not
/// receive it.
std::unique_ptr<ByteTransport> make_mpi_byte_transport(MpiProgress& progress, void* group,
                                                       Rank rank, uint64_t world,
                                                       std::vector<ProcessName> processes);

}  // namespace stagecraft::detail
