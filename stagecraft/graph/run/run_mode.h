#pragma once

#include <optional>

#include <c10/core/ScalarType.h>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// Sets grad mode and autocast of this thread to the state in which each node was captured, and
/// restores them at the end. Where the model did not change them, the caller's state stays.
class RunMode {
 public:
  RunMode();
  ~RunMode() { leave(); }
  RunMode(const RunMode&) = delete;
  RunMode& operator=(const RunMode&) = delete;

  void enter(const GraphNode& node) {
    if (node.is_no_grad != is_no_grad_) set_no_grad(node.is_no_grad);
    if (node.autocast != autocast_) set_autocast(node.autocast);
  }
  void leave();

 private:
  void set_no_grad(bool is_no_grad);
  void leave_region();
  void set_autocast(const std::optional<AutocastState>& state);

  bool had_grad_;
  bool is_no_grad_ = false;
  bool is_nested_ = false;  // in autocast's count of regions
  std::optional<AutocastState> autocast_;
  bool was_enabled_ = false;  // of the caller, for the kind of device in autocast_
  bool was_cached_ = true;
  c10::ScalarType old_dtype_ = c10::ScalarType::BFloat16;
};

/// The autocast state of this thread; nothing if it is off.
std::optional<AutocastState> current_autocast();

}  // namespace stagecraft
