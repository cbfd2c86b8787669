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

/// The outcome of a collective or a recovery for one rank, and the error that follows from it.
/// Shared by the threads of a LocalWorld (rendezvous.h) and by processes (wire/meeting_point.h).
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

/// Throws the error of `rank`, which spent the time `waited` in `call`: PeerError or TimeoutError.
/// If a rank left during the wait, the world is aborted first, through `abort`. REQUIRES an outcome
/// other than kMet.
[[noreturn]] void throw_unmet(const WorldState& world, Rank rank, const std::string& call,
                              const MeetingResult& result, Deadline::Clock::duration waited,
                              const std::function<void(AbortReason)>& abort);

/// ArgumentError unless all ranks made the same call. `calls` is by rank.
void require_same_calls(const std::vector<std::string>& calls);

}  // namespace stagecraft::detail
