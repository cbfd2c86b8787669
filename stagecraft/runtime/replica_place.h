#pragma once

#include <cstdint>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// Maps a rank of the world to a replica and a rank of its pipeline. The ranks of replica 0 come
/// first, then the ranks of replica 1.
struct ReplicaPlace {
  Rank self;          ///< in the world
  int32_t ranks = 1;  ///< of one replica
  int32_t replicas = 1;

  int32_t replica() const { return self.value() / ranks; }
  /// This rank's number in its pipeline.
  Rank own() const { return Rank(self.value() % ranks); }
  /// The number in the world of a rank of this replica.
  Rank in_world(Rank rank) const { return Rank(replica() * ranks + rank.value()); }
  /// The rank of a different replica that has the same stages.
  Rank in_replica(int32_t replica) const { return Rank(replica * ranks + own().value()); }
};

}  // namespace stagecraft
