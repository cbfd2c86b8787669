#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"
#include "stagecraft/transport/core/abort_reason.h"
#include "stagecraft/transport/core/world_state.h"

/// How a collective or a recovery ends for one rank, and which error that is. The threads of a
/// LocalWorld (rendezvous.h) and processes (wire/meeting_point.h) share it.
namespace stagecraft::detail {

struct MeetingResult {
  enum class Outcome : uint8_t { kMet, kTimedOut, kAborted, kLeft };

  Outcome outcome = Outcome::kMet;
  std::vector<Rank> missing = {};  ///< set at a timeout
  bool waited = true;  ///< false: the world was aborted, or a rank had left, before the call
};

/// Why ranks cannot meet: kLeft if a rank has left, and with `heeds_abort` kAborted if the world is
/// aborted. Nothing if they can.
std::optional<MeetingResult::Outcome> find_disturbance(const WorldState& world, bool heeds_abort);

/// Throws the error of `rank`, which waited this long in `call`: PeerError or TimeoutError. If a
/// rank left meanwhile, the world is aborted first, with `abort`. REQUIRES that they did not meet.
[[noreturn]] void throw_unmet(const WorldState& world, Rank rank, const std::string& call,
                              const MeetingResult& result, Deadline::Clock::duration waited,
                              const std::function<void(AbortReason)>& abort);

/// ArgumentError unless all ranks made the same call. `calls` is by rank.
void require_same_calls(const std::vector<std::string>& calls);

}  // namespace stagecraft::detail
