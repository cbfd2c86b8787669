#pragma once

#include <cstdint>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// Which rank of which replica of a pipeline a rank of the world is: the ranks of replica 0 come
/// first, then those of replica 1.
struct ReplicaPlace {
  Rank self;          ///< in the world
  int32_t ranks = 1;  ///< of one replica
  int32_t replicas = 1;

  int32_t replica() const { return self.value() / ranks; }
  /// In its pipeline.
  Rank own() const { return Rank(self.value() % ranks); }
  /// Of its replica, that rank's number in the world.
  Rank in_world(Rank rank) const { return Rank(replica() * ranks + rank.value()); }
  /// The rank of another replica that has the same stages.
  Rank twin(int32_t replica) const { return Rank(replica * ranks + own().value()); }
};

}  // namespace stagecraft
