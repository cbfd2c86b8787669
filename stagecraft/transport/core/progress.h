#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace stagecraft {

/// How a rank gets on, in its own words.
struct RankProgress {
  std::string finished;   ///< what it did last: "1F2 of step 3"
  std::string is_in;      ///< what it does now; empty: it is between two actions
  std::string waits_for;  ///< empty: it does not wait
  int32_t from = -1;      ///< the rank that it waits for; -1: all, or none
  std::chrono::milliseconds waits{0};
};

/// The same as another rank knows it.
struct HeardProgress {
  /// Nothing: the rank has not said anything.
  std::optional<RankProgress> progress = std::nullopt;
  std::chrono::milliseconds age{0};  ///< how long ago it said so
  bool is_lost = false;              ///< it will not say anything more
};

namespace detail {

/// Whom to ask how a rank gets on. Thread-safe: nobody is asked any more once another is put there.
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
