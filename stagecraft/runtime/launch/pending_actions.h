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

/// The actions of a rank that were launched and are not known to be complete: where the kernel is
/// whose error the device reports. Thread-safe.
class PendingActions {
 public:
  /// Known to failures of the device while the object lives.
  static std::shared_ptr<PendingActions> make(Rank rank, c10::Device device);

  void launched(Action action);
  /// The oldest `count` of the actions since the last start are complete, and so is all before.
  void complete(std::size_t count);
  /// A new step. What is pending belongs to the step before.
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
