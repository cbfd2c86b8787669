#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stagecraft/base/index.h"
#include "stagecraft/plan/schedule_problem.h"

namespace stagecraft {

/// The reason why no schedule can be faster. On a rank with the stages s1 < ... < sV, the first I
/// and the last F belong to sV, and the last I to s1. A head is the time before the first F of s1,
/// a tail the time after an action. Heads and tails are those of one microbatch alone, the
/// smallest.
enum class BoundArgument : uint8_t {
  kOneMicrobatch,  ///< all actions of one microbatch, one after the other
  /// B1: all work of the rank, and idle time. Before its first I only F run, as many as memory
  /// holds. Between its last F and the I of s1 for that microbatch, only actions run whose
  /// activations memory held. The rest of both intervals is idle.
  kWork,
  /// B2: when the last F ends, all F are done, and all I and W except those whose memory fits.
  /// After it, that microbatch must still pass the rest of its way.
  kLastForward,
  /// B3: when the last I ends, all F and I are done, and all W except those whose memory fits.
  kLastInput,
  kFirstGradient,  ///< B4: the work that cannot be done before a stage's first I
  kLastLeaving,    ///< B5: the work that must be done before a stage's last F ends, then its tail
  /// B6: memory times time. Every microbatch holds its memory for at least a round trip.
  kMemoryTime,
  /// B7: one stage a rank, and memory for k microbatches: F of microbatch j + k waits for I of
  /// microbatch j.
  kRoundTrips,
  /// B8: no action of the rank starts before its inputs can arrive, and after each action comes at
  /// least the work that depends on it. The rank would need that long even if actions could be
  /// interrupted.
  kOneRank,
};
/// "B2"; "one microbatch" for kOneMicrobatch.
std::string_view to_string(BoundArgument argument);

/// A time that no order of the actions can beat.
struct Bound {
  double value = 0;
  BoundArgument argument = BoundArgument::kOneMicrobatch;
  Rank rank;  ///< the rank that the argument is about
};

/// The argument of the bound as a sentence: "Rank 7 ... (B2)."
std::string to_sentence(const Bound& bound);

/// The largest of B1 to B7. It holds for every order, including orders that take microbatches out
/// of turn. ArgumentError as check_problem. Does not check whether the problem is feasible.
Bound lower_bound(const ScheduleProblem& problem);

/// The largest of B1 to B8. B8 goes through all actions, so it takes longer: milliseconds for ten
/// thousand actions. B8 exists only for microbatches of one size and the objective kStep.
Bound tight_bound(const ScheduleProblem& problem);

}  // namespace stagecraft
