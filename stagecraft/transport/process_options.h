#pragma once

#include <chrono>

namespace stagecraft {

/// How the ranks' ends behave once they have met.
struct ProcessTransportOptions {
  /// Compute a checksum of everything that is sent, but not over NCCL, and compare it on receipt.
  bool use_checksums = false;
  /// A rank of which nothing was heard for so long (each says something several times a second) has
  /// failed: one that is stopped, or cut off. Zero: only deadlines find it.
  std::chrono::nanoseconds max_silence = std::chrono::seconds(10);
  /// How long an end waits, when it is destroyed, for what it has sent to reach the others.
  std::chrono::nanoseconds linger = std::chrono::seconds(2);
};

}  // namespace stagecraft
