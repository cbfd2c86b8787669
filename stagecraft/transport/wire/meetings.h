#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/base/index.h"
#include "stagecraft/base/indexed_vector.h"

namespace stagecraft::detail {

/// A rank's contribution to a collective.
struct Participant {
  uint64_t attempt = 0;  ///< number of the rank's attempt, returned in the answer
  std::string call;      ///< the call: "barrier"
  std::string bytes;
};

/// Collects the contributions of all ranks, one collective after the other; kept by rank 0. A rank
/// that withdraws before all have come counts as never come.
class Meetings {
 public:
  explicit Meetings(int32_t ranks) : came_(ranks) {}

  /// All contributions if this one was the last; then the next collective begins.
  std::optional<std::vector<Participant>> come(Rank rank, Participant participant);
  /// The other ranks that are missing. Nothing if this attempt of the rank is not pending, because
  /// the collective has taken place.
  std::optional<std::vector<Rank>> withdraw(Rank rank, uint64_t attempt);
  /// Removes all contributions.
  void clear();

 private:
  IndexedVector<Rank, std::optional<Participant>> came_;
};

}  // namespace stagecraft::detail
