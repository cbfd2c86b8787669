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
  /// After it F and I alternate; an I that is there first may take the turn of an F.
  bool skip_forward = false;
  /// A W goes into a gap of at least this share of its time.
  double gap = 1;
  /// Of the cap.
  double memory_share = 1;
};
std::vector<ZeroBubbleChoice> zero_bubble_choices();

/// As many F as memory holds, then F and I in turn. W fills gaps that are long enough, or that
/// would make their rank the most idle one, and frees memory where it is short. Returns false if it
/// got stuck. REQUIRES one stage a rank, in a chain.
bool build_zero_bubble(const Instance& in, const ZeroBubbleChoice& choice, Words& words);

}  // namespace stagecraft::plan
