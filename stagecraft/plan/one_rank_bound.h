#pragma once

#include "stagecraft/plan/bound.h"
#include "stagecraft/plan/instance.h"

namespace stagecraft::plan {

/// B8 of an instance. The value is 0 if B8 does not apply: for the objective kSpan, and for
/// microbatches that differ. O(n log n) for n actions.
///
/// Heads and tails are computed for each microbatch. Each stage takes its microbatches in ascending
/// order. (This excludes no schedule if microbatches are alike.) Each stage is treated as if it had
/// a rank of its own:
///
///   F_s(m) starts after F_p(m) of its producers, after F_s(m-1), and after I_s(m-k), if memory
///          holds k activations of s
///   I_s(m) starts after I_n(m) of its readers, after F_s(m), and after I_s(m-1)
///   W_s(m) starts after I_s(m)
///
/// Tails follow from the same rules backwards from the end. If k activations leave no room for the
/// memory that a W needs, then W_s(m-k) or I_s(m-k+1) is also done when F_s(m) starts.
///
/// Every action of a rank then has a head, a time and a tail, and the rank does one at a time. If
/// actions may be interrupted, the order "longest tail first" is best (Jackson), so its value is a
/// lower bound for every order without interruptions.
Bound one_rank_bound(const Instance& in);

}  // namespace stagecraft::plan
