#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/record_function.h>

#include "stagecraft/schedule/slot.h"

namespace stagecraft {

/// A range of torch's profiler around an action, named as in torch's pipelines: "PP:2F0",
/// "PP:(0F1;1B0)OVERLAP_F_B". Without a profiler it costs one check for callbacks, and the name is
/// not made.
class ActionRange {
 public:
  /// An action, or an overlap and its parts.
  explicit ActionRange(std::span<const Action> actions) {
    auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (!callbacks) return;
    name_ = "PP:" + to_string(Slot(actions, 0, 0));
    range_.emplace(std::move(*callbacks));
    range_->before(std::string_view(name_));
  }

 private:
  std::string name_;  // the range has a view of it
  std::optional<at::RecordFunction> range_;
};

}  // namespace stagecraft
