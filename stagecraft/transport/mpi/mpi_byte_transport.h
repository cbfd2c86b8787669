#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "stagecraft/transport/mpi/mpi_progress.h"
#include "stagecraft/transport/wire/byte_transport.h"
#include "stagecraft/transport/wire/peer_processes.h"

namespace stagecraft::detail {

/// The tags that MPI must have: the wire protocol's, and which world it is above them.
constexpr ByteTransport::Tag kLastMpiTag = (1 << 28) - 1;

/// An engine over a group of MPI's, which it takes over. `processes[i]` is that of rank i. `world`
/// is the same on all ranks, and another one than that of recent groups of the same ranks: a
/// message that was sent to a rank which had left stays in MPI, and a later group that MPI has
/// given the same number must not take it for its own.
std::unique_ptr<ByteTransport> make_mpi_byte_transport(MpiProgress& progress, void* group,
                                                       Rank rank, uint64_t world,
                                                       std::vector<ProcessName> processes);

}  // namespace stagecraft::detail
