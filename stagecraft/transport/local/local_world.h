#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// How threads wait for each other.
struct LocalWorldOptions {
  /// A send is done only when its receive is posted, as in a network without buffers. Finds
  /// schedules that rely on buffering.
  bool zero_buffering = false;
  /// How long a wait spins before it sleeps; after 20 µs it yields the processor between two
  /// checks. Default: 1 ms if ranks do not outnumber the processor's threads, otherwise 0. (Waking
  /// a thread takes tens of microseconds, and waits in a pipeline often take a few hundred.)
  std::optional<Deadline::Clock::duration> spin = std::nullopt;
};

/// A world of ranks that are threads of one process. Tensors are handed over, not copied. A tensor
/// that a device computes may be used on the receiver's stream.
///
///   LocalWorld world(2);
///   world.run([](Transport& rank) { ... });     // on two threads, one for each rank
///
/// Transports may outlive the world. A transport that is destroyed while other ranks wait for its
/// rank aborts the world; a rank that begins to wait for it later gets PeerError at once.
class LocalWorld {
 public:
  /// ArgumentError unless ranks >= 1.
  explicit LocalWorld(int32_t ranks, const LocalWorldOptions& options = {});
  ~LocalWorld();
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

  int32_t num_ranks() const;
  /// The transport of one rank. It is created by the first call and kept until the world ends or it
  /// is released.
  Transport& transport(Rank rank);
  /// Gives a rank's transport to the caller.
  std::unique_ptr<Transport> release(Rank rank);

  /// Calls `body` once for each rank, each on its own thread, and returns when all have returned. A
  /// rank that throws aborts the world; then this throws the exception of the first rank that
  /// failed.
  void run(const std::function<void(Transport&)>& body);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
