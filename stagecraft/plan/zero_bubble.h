#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/plan/instance.h"
#include "stagecraft/plan/word.h"

namespace stagecraft::plan {

/// The choices of the zero-bubble papers' heuristic for one stage a rank.
struct ZeroBubbleChoice {
  /// Warm-up: one more F even if it delays the first I.
  bool delay_first_input = false;
  /// After the warm-up F and I alternate. An I whose gradient arrives first may take the turn of an
  /// F.
  bool skip_forward = false;
  /// A W is run in a gap of at least this share of its time.
  double gap = 1;
  /// The share of the cap that may be used.
  double memory_share = 1;
};
std::vector<ZeroBubbleChoice> zero_bubble_choices();

/// Builds words by the heuristic: as many F as memory holds, then F and I in turn. A W fills a gap
/// that is long enough or that would make its rank the most idle one, and frees memory if it is
/// needed. Returns false if no rank can continue. REQUIRES one stage a rank, in a chain.
bool build_zero_bubble(const Instance& in, const ZeroBubbleChoice& choice, Words& words);

}  // namespace stagecraft::plan
