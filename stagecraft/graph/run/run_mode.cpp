#include "stagecraft/graph/run/run_mode.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>

namespace stagecraft {

RunMode::RunMode() : had_grad_(c10::GradMode::is_enabled()) {}

void RunMode::leave() {
  if (is_no_grad_) set_no_grad(false);
  if (autocast_) set_autocast(std::nullopt);
  if (is_nested_) leave_region();
}

void RunMode::leave_region() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  is_nested_ = false;
}

void RunMode::set_no_grad(bool is_no_grad) {
  // A caller without gradients stays without: the graph only knows the regions of the model.
  c10::GradMode::set_enabled(had_grad_ && !is_no_grad);
  is_no_grad_ = is_no_grad;
}

// Casts are kept until the outermost region ends. If the region is not known, they are kept until
// the end of the run.
void RunMode::set_autocast(const std::optional<AutocastState>& state) {
  namespace autocast = at::autocast;
  // First back to the caller's state: the next state may be of a different type of device.
  if (autocast_) {
    autocast::set_autocast_enabled(autocast_->device_type, was_enabled_);
    autocast::set_autocast_dtype(autocast_->device_type, old_dtype_);
    autocast::set_autocast_cache_enabled(was_cached_);
    const bool is_left = autocast_->region > 0 && (!state || state->region != autocast_->region);
    if (is_left && is_nested_) leave_region();
  }
  autocast_ = state;
  if (!state) return;
  was_enabled_ = autocast::is_autocast_enabled(state->device_type);
  old_dtype_ = autocast::get_autocast_dtype(state->device_type);
  was_cached_ = autocast::is_autocast_cache_enabled();
  autocast::set_autocast_enabled(state->device_type, state->is_enabled);
  autocast::set_autocast_dtype(state->device_type, state->dtype);
  // A caller may have switched the cache off (recomputation does).
  autocast::set_autocast_cache_enabled(was_cached_ && state->is_cached);
  if (!is_nested_) autocast::increment_nesting();
  is_nested_ = true;
}

std::optional<AutocastState> current_autocast() {
  for (const c10::DeviceType type : {c10::kCPU, c10::kCUDA}) {
    if (at::autocast::is_autocast_enabled(type)) {
      return AutocastState{.device_type = type,
                           .dtype = at::autocast::get_autocast_dtype(type),
                           .is_cached = at::autocast::is_autocast_cache_enabled()};
    }
  }
  return std::nullopt;
}

}  // namespace stagecraft
