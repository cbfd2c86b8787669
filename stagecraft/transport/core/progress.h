#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace stagecraft {

/// The progress of a rank, as it reports it.
struct RankProgress {
  std::string finished;   ///< its last action: "1F2 of step 3"
  std::string is_in;      ///< its current action; empty: between two actions
  std::string waits_for;  ///< empty: it does not wait
  int32_t from = -1;      ///< the rank that it waits for; -1: all, or none
  std::chrono::milliseconds waits{0};
};

/// The progress of a rank, as known to the other ranks.
struct HeardProgress {
  /// Nothing if the rank has reported no progress.
  std::optional<RankProgress> progress = std::nullopt;
  std::chrono::milliseconds age{0};  ///< time since the report
  bool is_lost = false;              ///< it will not report again
};

namespace detail {

/// The progress callback of a rank. Thread-safe: after `set` returns, the old callback is not
/// called again.
class ProgressSource {
 public:
  void set(std::function<RankProgress()> tell) {
    const std::lock_guard lock(mutex_);
    tell_ = std::move(tell);
  }
  std::optional<RankProgress> ask() const {
    const std::lock_guard lock(mutex_);
    return tell_ ? std::optional(tell_()) : std::nullopt;
  }

 private:
  mutable std::mutex mutex_;
  std::function<RankProgress()> tell_;
};

}  // namespace detail
}  // namespace stagecraft
