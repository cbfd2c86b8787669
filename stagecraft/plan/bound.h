#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stagecraft/base/index.h"
#include "stagecraft/plan/schedule_problem.h"

namespace stagecraft {

/// Why no schedule can be faster. Of a rank with the stages s1 < ... < sV: its first I and its last
/// F are of sV, its last I is of s1. Times before s1's first F (heads) and after an action (tails)
/// are those of one microbatch, the smallest, alone.
enum class BoundArgument : uint8_t {
  kOneMicrobatch,  ///< all actions of one microbatch, one after the other
  /// B1: all work of the rank. Before its first I only F run, as many as memory holds; between its
  /// last F and that microbatch's I of s1 only what memory held can run; the rest is idle.
  kWork,
  /// B2: when the last F ends, all F are done, and all I and W but those whose memory fits. The way
  /// of that microbatch to the end comes after it.
  kLastForward,
  /// B3: when the last I ends, all F and I are done, and all W but those whose memory fits.
  kLastInput,
  kFirstGradient,  ///< B4: what cannot have been done when a stage's first I starts
  kLastLeaving,    ///< B5: what must have been done when a stage's last F ends, then its way
  /// B6: memory times time. Every microbatch holds its memory for at least a round trip.
  kMemoryTime,
  /// B7: one stage a rank, k microbatches fit: F of j + k waits for I of j.
  kRoundTrips,
  /// B8: no action of the rank starts before its inputs can be there, and after each comes at least
  /// what depends on it. Even if actions could be interrupted, the rank would need that long.
  kOneRank,
};
/// "B2"; "one microbatch" for kOneMicrobatch.
std::string_view to_string(BoundArgument argument);

/// A time that no order of the actions can beat.
struct Bound {
  double value = 0;
  BoundArgument argument = BoundArgument::kOneMicrobatch;
  Rank rank;  ///< whose argument it is
};

/// What the bound rests on, a sentence: "Rank 7 ... (B2)."
std::string to_sentence(const Bound& bound);

/// The largest of B1 to B7. It holds for every order, also one that takes microbatches out of turn.
/// ArgumentError as check_problem. Does not look whether the problem is feasible.
Bound lower_bound(const ScheduleProblem& problem);

/// The largest of B1 to B8. B8 goes through all actions, so it takes longer: milliseconds for ten
/// thousand. It says something for alike microbatches and the objective kStep only.
Bound tight_bound(const ScheduleProblem& problem);

}  // namespace stagecraft
