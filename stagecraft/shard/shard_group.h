#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// The ranks that hold the same stages in different replicas, by replica.
struct ShardGroup {
  std::vector<Rank> members = {};
  int32_t own = 0;  ///< the replica of this rank

  int32_t size() const { return static_cast<int32_t>(members.size()); }
  Rank rank(int32_t member) const { return members[static_cast<std::size_t>(member)]; }
};

}  // namespace stagecraft
