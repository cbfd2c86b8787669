#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// How threads wait for each other.
struct LocalWorldOptions {
  /// A send is done only when its receive was posted: what a network without buffers does. For
  /// finding schedules that rely on buffering.
  bool zero_buffering = false;
  /// How long a wait looks before it sleeps, offering the processor to others after 20 µs of it.
  /// Without it: 1 ms where ranks do not outnumber the processor's threads (waking a thread that
  /// sleeps takes tens of microseconds, and waits in a pipeline are often a few hundred), otherwise
  /// 0.
  std::optional<Deadline::Clock::duration> spin = std::nullopt;
};

/// Ranks in one process: a thread each. Tensors are handed over, not copied; a tensor made on a
/// device is safe to use on the receiver's stream.
///
///   LocalWorld world(2);
///   world.run([](Transport& rank) { ... });     // on two threads, one for each rank
///
/// The transports may outlive the world. A transport that is destroyed while others still wait for
/// its rank aborts the world; whoever comes to wait for it later gets PeerError at once.
class LocalWorld {
 public:
  /// ArgumentError unless ranks >= 1.
  explicit LocalWorld(int32_t ranks, const LocalWorldOptions& options = {});
  ~LocalWorld();
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

  int32_t num_ranks() const;
  /// The end of one rank, made when it is first asked for and then kept until the world ends or it
  /// is released.
  Transport& transport(Rank rank);
  /// Hands over a rank's end; the world forgets it.
  std::unique_ptr<Transport> release(Rank rank);

  /// Calls `body` once for each rank, on a thread of its own, and returns when all have. A rank
  /// that throws aborts the world with what it threw; then the exception of the first that failed
  /// is thrown here.
  void run(const std::function<void(Transport&)>& body);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
