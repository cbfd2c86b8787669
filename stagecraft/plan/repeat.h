#pragma once

#include <cstdint>

#include "stagecraft/plan/instance.h"
#include "stagecraft/plan/word.h"

namespace stagecraft::plan {

/// How many microbatches the words should have that are repeated for `microbatches` on `ranks`:
/// three times the ranks or a little more, so that the rest is a multiple of 12. 0: not worth
/// while.
int32_t repeated_microbatches(int32_t ranks, int32_t microbatches);

/// The steady state of words, repeated: in each rank's word the stretch with exactly `k` of every
/// kind of action and stage whose middle is nearest to the share `middle` of the word comes `times`
/// times more. Microbatches are numbered anew. Returns false if a rank has no such stretch. Whether
/// the result runs, and fits, has to be looked at.
bool repeat_stretch(const Instance& in, const Words& words, int32_t k, int32_t times, double middle,
                    Words& out);

}  // namespace stagecraft::plan
