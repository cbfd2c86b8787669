#include "stagecraft/transport/core/meeting_result.h"

#include <algorithm>
#include <utility>

#include "stagecraft/base/assert.h"
#include "stagecraft/base/check.h"
#include "stagecraft/transport/core/exchange_errors.h"

namespace stagecraft::detail {

std::optional<MeetingResult::Outcome> find_disturbance(const WorldState& world, bool heeds_abort) {
  // First: a rank that aborts often leaves next, and the reason of the abort tells more.
  if (heeds_abort && world.is_aborted()) return MeetingResult::Outcome::kAborted;
  if (world.anyone_left()) return MeetingResult::Outcome::kLeft;
  return std::nullopt;
}

void throw_unmet(const WorldState& world, Rank rank, const std::string& call,
                 const MeetingResult& result, Deadline::Clock::duration waited,
                 const std::function<void(AbortReason)>& abort) {
  using Outcome = MeetingResult::Outcome;
  SC_ASSERT(result.outcome != Outcome::kMet);
  if (result.outcome == Outcome::kTimedOut) {
    throw_timeout(rank, waited, name_ranks(result.missing) + " in " + call);
  }
  // If the world has recovered since, nothing is thrown here, and the departure is reported.
  if (result.outcome == Outcome::kAborted) world.throw_if_aborted();
  const auto left = world.ranks_that_left();
  const Rank peer = left.empty() ? rank : left.front();
  const auto what = "it in " + call;
  if (!result.waited) throw_has_left(peer, rank, what);
  // The other ranks wait for the same collective and would wait until their deadlines.
  abort(reason_left(peer, rank, what));
  throw PeerError(reason_left(peer, rank, what).message, peer);
}

void require_same_calls(const std::vector<std::string>& calls) {
  std::vector<std::pair<std::string, std::vector<Rank>>> callers;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    // In the order of the ranks, so that all ranks build the same text.
    const auto known = std::find_if(callers.begin(), callers.end(),
                                    [&](const auto& caller) { return caller.first == calls[i]; });
    auto& ranks = known == callers.end()
                      ? callers.emplace_back(calls[i], std::vector<Rank>()).second
                      : known->second;
    ranks.push_back(Rank(static_cast<int32_t>(i)));
  }
  if (callers.size() < 2) return;
  std::string text;
  for (const auto& [call, ranks] : callers) {
    text += fmt::format("{}{} called {}", text.empty() ? "" : ", ", name_ranks(ranks), call);
  }
  throw ArgumentError("all ranks must call the same collective, but " + text);
}

}  // namespace stagecraft::detail
