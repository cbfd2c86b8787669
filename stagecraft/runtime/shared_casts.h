#pragma once

#include <algorithm>
#include <span>

#include <ATen/autocast_mode.h>

#include "stagecraft/stage/stage.h"

namespace stagecraft {

/// While it lives, weights that autocast casts on this thread are cast once, not in every forward.
/// It has no effect unless all stages allow it (StageBody::shares_casts) and this thread's own
/// autocast is off.
class SharedCasts {
 public:
  explicit SharedCasts(std::span<const Stage> stages)
      : is_on_(!at::autocast::is_autocast_enabled(c10::kCPU) &&
               !at::autocast::is_autocast_enabled(c10::kCUDA) &&
               std::ranges::all_of(stages, [](const Stage& s) { return s.shares_casts(); })) {
    if (is_on_) at::autocast::increment_nesting();
  }
  ~SharedCasts() {
    if (!is_on_) return;
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
  }
  SharedCasts(const SharedCasts&) = delete;
  SharedCasts& operator=(const SharedCasts&) = delete;

 private:
  bool is_on_;
};

}  // namespace stagecraft
