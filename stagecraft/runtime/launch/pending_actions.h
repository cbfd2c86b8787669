#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include <c10/core/Device.h>

#include "stagecraft/base/index.h"
#include "stagecraft/schedule/action.h"

namespace stagecraft::detail {

/// The actions of a rank that were launched and are not known to be complete. If the device reports
/// an error, one of them has launched the failed kernel. Thread-safe.
class PendingActions {
 public:
  /// Makes an object that `describe` finds while it lives.
  static std::shared_ptr<PendingActions> make(Rank rank, c10::Device device);

  void launched(Action action);
  /// Records that the oldest `count` of the actions since the last start are complete, and all
  /// actions before that start.
  void complete(std::size_t count);
  /// Begins a step. Actions that are pending now belong to the step before.
  void start();

  /// "rank 0: 0F1, 0F2; rank 1: 1F0", of all ranks of this process on the device; empty if nothing
  /// is pending. Names the last 16 actions of a rank.
  static std::string describe(c10::Device device);

 private:
  PendingActions(Rank rank, c10::Device device) : rank_(rank), device_(device) {}
  std::string text() const;

  const Rank rank_;
  const c10::Device device_;
  mutable std::mutex mutex_;
  std::deque<Action> earlier_;  // of the step before
  std::deque<Action> current_;
  std::size_t completed_ = 0;  // of the step
};

}  // namespace stagecraft::detail
