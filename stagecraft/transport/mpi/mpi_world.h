#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "stagecraft/transport/agree.h"
#include "stagecraft/transport/process_options.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// What the launcher does not say.
struct MpiWorldOptions {
  /// The first so many ranks of the job; the others have nothing to do with it. Nothing: all.
  std::optional<int32_t> num_ranks = std::nullopt;
  /// What the ranks must agree on besides version and number: schedule, stages, kinds of devices.
  /// One of the same name ("version") stands for the built-in one.
  Facts facts = {};
  /// How long ranks wait for each other.
  std::chrono::nanoseconds join_timeout = std::chrono::seconds(60);
  ProcessTransportOptions transport = {};
};

/// A world whose ranks are processes that mpirun (or srun) has started, of Open MPI or MPICH.
///
///   MpiWorld world;                                      // mpirun -np 2 ./program
///   Runner runner(world.transport(), ...);
///
/// Which MPI it is follows from the environment; a plug-in for it is loaded then, so that a program
/// needs neither to build. STAGECRAFT_MPI=openmpi or mpich chooses, STAGECRAFT_MPI_PLUGIN names the
/// plug-in's file.
///
/// MPI is started by the first world and ended when the process ends, unless the program has
/// started it itself, with MPI_THREAD_MULTIPLE; several worlds, after or beside each other, have a
/// communicator each, and all ranks of them make them in the same order. After a rank was lost
/// MPI_Finalize is not called: it would wait for it.
///
/// A process of this machine that ends or is killed aborts the world within milliseconds, one of
/// another machine when it has said nothing for max_silence: the others get PeerError, which names
/// it. But mpirun ends all processes of a job when one dies, unless it is told not to (Open MPI:
/// --enable-recovery, MPICH: -disable-auto-cleanup).
///
/// Tensors of the CPU travel from and into their own memory; those of other devices are copied
/// through memory of the CPU, also where MPI could take them as they are.
class MpiWorld {
 public:
  /// Meets the other ranks. ArgumentError without a launcher, without its plug-in, for a number of
  /// ranks that does not include this one, and for an MPI that was started for one thread;
  /// TimeoutError that names ranks that have not come; MetadataError on every rank if they differ
  /// in version or facts (agree.h).
  explicit MpiWorld(const MpiWorldOptions& options = {});
  ~MpiWorld();
  MpiWorld(MpiWorld&&) noexcept;
  MpiWorld& operator=(MpiWorld&&) noexcept;

  Rank rank() const { return rank_; }
  int32_t num_ranks() const { return num_ranks_; }
  /// Of this process among those of its machine.
  int32_t local_rank() const { return local_rank_; }

  /// This process's end. ArgumentError once it was released.
  Transport& transport();
  /// Hands it over; the world forgets it.
  std::unique_ptr<Transport> release();

  /// Which rank of the job this process is, and how many there are. Starts MPI if need be.
  static Rank job_rank(std::chrono::nanoseconds timeout = std::chrono::seconds(60));
  static int32_t job_size(std::chrono::nanoseconds timeout = std::chrono::seconds(60));

 private:
  Rank rank_;
  int32_t num_ranks_ = 1;
  int32_t local_rank_ = 0;
  std::unique_ptr<Transport> transport_;
};

}  // namespace stagecraft
