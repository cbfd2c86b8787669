#pragma once

#include <memory>

#include "stagecraft/transport/join_options.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// Joins a world whose ranks are processes that mpirun or srun has started, with Open MPI or MPICH.
///
///   auto transport = join_mpi();                         // mpirun -np 2 ./program
///   Runner runner(*transport, ...);
///
/// The environment tells which MPI it is. Its plug-in is loaded then, so a program is built without
/// MPI. STAGECRAFT_MPI=openmpi or mpich overrides the choice, STAGECRAFT_MPI_PLUGIN names the
/// plug-in's file. Of the options, only num_ranks, token, fingerprint, join_timeout and transport
/// are used.
///
/// The first world starts MPI, and the end of the process ends it, unless the program has started
/// MPI itself with MPI_THREAD_MULTIPLE. Each world has its own communicator, so several worlds may
/// exist at the same time. All their ranks must join them in the same order. MPI_Finalize is not
/// called after a rank was lost, because it would wait for that rank.
///
/// A process of this machine that ends or is killed aborts the world within milliseconds; a process
/// of a different machine does so after max_silence. The other ranks get PeerError, which names the
/// rank. But mpirun ends all processes of a job when one dies, unless it is told not to (Open MPI:
/// --enable-recovery, MPICH: -disable-auto-cleanup).
///
/// CPU tensors travel from and into their own memory. Tensors of other devices are copied through
/// pinned memory, even if MPI could take them directly.
///
/// ArgumentError without a launcher, without a plug-in, for a number of ranks that does not include
/// this one, and for an MPI that was started for one thread. TimeoutError names the ranks that did
/// not join in time. MetadataError on every rank if the ranks differ in what they must agree on.
std::unique_ptr<Transport> join_mpi(const JoinOptions& options = {});

}  // namespace stagecraft
