#pragma once

#include <cstdint>

#include "stagecraft/plan/instance.h"
#include "stagecraft/plan/word.h"

namespace stagecraft::plan {

/// How many microbatches words should have before their steady state is repeated to get
/// `microbatches` on `ranks`: three times the ranks, or up to 11 more, so that the rest is a
/// multiple of 12. (A stretch of 1, 2, 3 or 4 microbatches is repeated, and 12 is a multiple of all
/// of them.) 0: there are too few microbatches for a repetition.
int32_t repeated_microbatches(int32_t ranks, int32_t microbatches);

/// Repeats the steady state of words. A stretch of a rank's word is a part with exactly `k` actions
/// of every kind and stage. Takes the stretch whose middle is nearest to the share `middle` of the
/// word, and inserts it `times` times more. Microbatches are numbered again. Returns false if a
/// rank has no such stretch. The caller must check whether the result runs and fits.
bool repeat_stretch(const Instance& in, const Words& words, int32_t k, int32_t times, double middle,
                    Words& out);

}  // namespace stagecraft::plan
