#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <c10/core/Device.h>

#include "stagecraft/transport/join_options.h"
#include "stagecraft/transport/local/local_world.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// What a program requests of its world. The environment determines the rest.
struct WorldOptions {
  /// "local": ranks are threads of this process. "gloo", "nccl", "mpi": ranks are processes.
  /// "auto": the launcher decides; gloo for torchrun and srun, mpi for mpirun, local without a
  /// launcher.
  std::string transport = "auto";
  /// The expected number of ranks: ArgumentError if a launcher has started a different number.
  std::optional<int32_t> ranks = std::nullopt;
  /// The number of threads, without a launcher and without `ranks`.
  int32_t local_ranks = 1;
  /// How transports of processes behave, and how long processes wait for each other to join.
  ProcessTransportOptions process = {};
  std::chrono::nanoseconds join_timeout = std::chrono::seconds(60);
  /// What the ranks must agree on (JoinOptions::fingerprint).
  Fingerprint fingerprint = {};
  LocalWorldOptions local = {};
};

/// The ranks of a program, however it was started:
///
///   int main() {
///     auto world = stagecraft::World::from_environment({.local_ranks = 2});
///     world.run([](stagecraft::Transport& transport) { ... });
///   }
///
///   ./program                                              two threads
///   torchrun --no-python --nproc-per-node 2 ./program      two processes, gloo
///   mpirun -np 2 ./program                                 two processes, MPI
///   srun -n 2 ./program                                    two processes, gloo
///
/// A world of processes lives as long as this object. Not thread-safe.
class World {
 public:
  /// Finds the launcher of this process and joins the other ranks. Reads the variables of torchrun
  /// (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), of both mpiruns and of srun, and
  /// those that JoinOptions names. ArgumentError for an unknown transport; throws as join_gloo,
  /// join_mpi and join_nccl do.
  static World from_environment(const WorldOptions& options = {});
  ~World();
  World(World&&) noexcept;
  World& operator=(World&&) noexcept;

  /// "local", "gloo", "nccl" or "mpi".
  const std::string& transport_name() const { return name_; }
  int32_t num_ranks() const { return num_ranks_; }
  /// Whether every rank is a thread of this process.
  bool is_local() const { return local_ != nullptr; }
  /// The number of this process in the world and on its machine; 0 if ranks are threads.
  Rank rank() const { return rank_; }
  int32_t local_rank() const { return local_rank_; }
  /// Over NCCL: the GPU of this rank, which is also the current device of the thread that created
  /// the world. Otherwise the CPU, whatever device the program computes on.
  c10::Device device() const { return device_; }

  /// Calls `body` with this process's transport, or on a thread for each rank. An exception of
  /// `body` aborts the world, so that the other ranks fail too, and is rethrown here; of several
  /// threads, the exception of the first rank that failed. A world of processes cannot be used
  /// afterwards.
  void run(const std::function<void(Transport&)>& body);

  /// This process's transport. ArgumentError if ranks are threads: `run` gives each its own.
  Transport& transport();

 private:
  World() = default;

  std::string name_;
  int32_t num_ranks_ = 1;
  Rank rank_{0};
  int32_t local_rank_ = 0;
  c10::Device device_ = c10::kCPU;
  std::unique_ptr<LocalWorld> local_;
  std::unique_ptr<Transport> end_;  ///< null if ranks are threads
};

}  // namespace stagecraft
