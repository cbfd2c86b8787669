#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <c10/core/Device.h>

#include "stagecraft/transport/c10d/process_world.h"
#include "stagecraft/transport/local/local_world.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// What carries values between ranks.
enum class TransportKind : uint8_t {
  kAuto,   ///< what the launcher suggests: gloo for torchrun and srun, MPI for mpirun, else local
  kLocal,  ///< ranks are threads of this process
  kGloo,   ///< processes, over gloo
  kNccl,   ///< processes with a GPU each: their tensors over NCCL, all else over gloo
  kMpi,    ///< processes, over the MPI that has started them
};

/// "auto", "local", "gloo", "nccl", "mpi"; ArgumentError for another word.
TransportKind parse_transport_kind(const std::string& word);
std::string to_string(TransportKind kind);

/// What a program wants of its world; everything else is in the environment.
struct WorldOptions {
  TransportKind transport = TransportKind::kAuto;
  /// How many ranks there are to be: ArgumentError when a launcher has started another number.
  std::optional<int32_t> ranks = std::nullopt;
  /// How many threads there are where no launcher and no `ranks` says otherwise.
  int32_t local_ranks = 1;
  /// How processes behave once they have met, and how long they wait for each other before.
  ProcessTransportOptions process = {};
  std::chrono::nanoseconds join_timeout = std::chrono::seconds(60);
  /// What the ranks must agree on, besides version and number (agree.h).
  Facts facts = {};
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
/// A world of processes lives as long as this object. Belongs to one thread.
class World {
 public:
  /// Finds out who has started this process, and meets the other ranks. The variables that it reads
  /// are those of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), of the two
  /// mpiruns and of srun; STAGECRAFT_TOKEN, STAGECRAFT_LISTEN and STAGECRAFT_ADDRESS as
  /// ProcessWorldOptions says. Throws as ProcessWorld and MpiWorld do.
  static World from_environment(const WorldOptions& options = {});
  ~World();
  World(World&&) noexcept;
  World& operator=(World&&) noexcept;

  /// Never kAuto.
  TransportKind transport_kind() const { return kind_; }
  int32_t num_ranks() const { return num_ranks_; }
  /// Whether every rank is a thread of this process.
  bool is_local() const { return kind_ == TransportKind::kLocal; }
  /// Of processes: which one this is, in the world and on its machine; 0 where ranks are threads.
  Rank rank() const { return rank_; }
  int32_t local_rank() const { return local_rank_; }
  /// Over NCCL: the GPU of this rank, which is the current one of the thread that made the world.
  /// The CPU otherwise, whatever the program computes on.
  c10::Device device() const { return device_; }

  /// Calls `body` with this process's rank, or on a thread for each. What it throws aborts the
  /// world, so that the other ranks hear of it, and is thrown here; of threads, what the first that
  /// failed threw. A world of processes is over then: make another.
  void run(const std::function<void(Transport&)>& body);

  /// This process's end. ArgumentError where ranks are threads: each has its own, in `run`.
  Transport& transport();

 private:
  World() = default;

  TransportKind kind_ = TransportKind::kLocal;
  int32_t num_ranks_ = 1;
  Rank rank_{0};
  int32_t local_rank_ = 0;
  c10::Device device_ = c10::kCPU;
  std::unique_ptr<LocalWorld> local_;
  std::unique_ptr<Transport> end_;  // of a process
};

}  // namespace stagecraft
