#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "stagecraft/transport/agree.h"
#include "stagecraft/transport/process_options.h"
#include "stagecraft/transport/transport.h"

namespace c10d {
class ProcessGroup;
}

namespace stagecraft {

/// Who this process is, and where the others are met.
struct ProcessWorldOptions {
  Rank rank;
  int32_t num_ranks = 1;
  /// Of this process among those of its machine; nothing is done with it here.
  int32_t local_rank = 0;

  /// Where the ranks find each other: the store of c10d. Rank 0 keeps it unless another process
  /// does, such as torchrun.
  std::string host = "127.0.0.1";
  uint16_t port = 29500;
  bool store_is_elsewhere = false;
  /// The address that rank 0's store listens on.
  std::string listen = "127.0.0.1";
  /// A socket that listens already, instead of `port` and `listen`; rank 0 takes it over.
  std::optional<int> listen_fd = std::nullopt;
  /// Where the others reach this rank. Empty: the address from which it reaches `host`.
  std::string address;
  /// Of worlds that share a store, for instance one after another.
  std::string job;

  /// Known to this job's ranks only: who does not have it is not admitted. Needed unless all
  /// listen on the loopback address. It keeps out who comes by mistake; what travels afterwards is
  /// neither secret nor signed, so the network between the ranks must be trusted.
  std::string token;
  /// What the ranks must agree on besides version and number: schedule, stages, kinds of devices.
  /// One of the same name ("version") stands for the built-in one.
  Facts facts = {};
  /// How long ranks wait for each other.
  std::chrono::nanoseconds join_timeout = std::chrono::seconds(60);
  ProcessTransportOptions transport = {};

  /// What torchrun sets: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT; besides them
  /// STAGECRAFT_TOKEN, STAGECRAFT_LISTEN and STAGECRAFT_ADDRESS. ArgumentError that names what is
  /// missing or no number.
  static ProcessWorldOptions from_environment();
};

/// A world whose ranks are processes, on one machine or several, connected by gloo. Tensors are the
/// CPU's; others are copied through it.
///
///   auto world = ProcessWorld::from_environment();       // torchrun --no-python ./program
///   Runner runner(world.transport(), ...);
///
/// A process that ends, is killed or stops aborts the world: the others get PeerError, which names
/// it. Afterwards, or after the world's end, a new one can be made in the same process.
class ProcessWorld {
 public:
  /// Meets the other ranks. TimeoutError that names those that have not come; ArgumentError without
  /// the job's token, or where another process is this rank; MetadataError on every rank if they
  /// differ in version or number (agree.h).
  explicit ProcessWorld(const ProcessWorldOptions& options);
  /// A world over a group of c10d that exists already and has a backend for the CPU (ArgumentError
  /// otherwise). Nobody else may send or receive in the group. Whoever made it sees to SIGPIPE,
  /// which gloo raises when another process dies.
  ///
  /// A backend other than gloo must have tags, take a message that is shorter than what was posted
  /// for it, and say with Work::isCompleted when one is through. That a process has ended is found
  /// by its silence unless the backend says so.
  explicit ProcessWorld(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                        const ProcessTransportOptions& options = {});
  static ProcessWorld from_environment() {
    return ProcessWorld(ProcessWorldOptions::from_environment());
  }
  ~ProcessWorld();
  ProcessWorld(ProcessWorld&&) noexcept;
  ProcessWorld& operator=(ProcessWorld&&) noexcept;

  Rank rank() const { return rank_; }
  int32_t num_ranks() const { return num_ranks_; }
  int32_t local_rank() const { return local_rank_; }

  /// This process's end. ArgumentError once it was released.
  Transport& transport();
  /// Hands it over; the world forgets it.
  std::unique_ptr<Transport> release();

 private:
  Rank rank_;
  int32_t num_ranks_;
  int32_t local_rank_ = 0;
  std::unique_ptr<Transport> transport_;
};

}  // namespace stagecraft
