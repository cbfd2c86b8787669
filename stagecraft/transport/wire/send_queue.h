#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"
#include "stagecraft/transport/device/staging.h"

namespace stagecraft::detail {

/// Where values wait until their devices have made them, or which take long to hand over. A thread
/// of its own calls what is to happen then, one after another.
class SendQueue {
 public:
  /// How the wait ended. A device's failure: in its own words.
  struct Outcome {
    bool is_ready = false;
    std::string failure = {};
  };
  using OnReady = std::function<void(const Outcome&)>;

  explicit SendQueue(Rank to);
  /// Stops and waits for the thread.
  ~SendQueue();
  SendQueue(const SendQueue&) = delete;
  SendQueue& operator=(const SendQueue&) = delete;

  void add(Readiness ready, OnReady on_ready);
  /// Until all that was added has departed; false at the deadline.
  bool flush(Deadline deadline);
  /// Nothing is waited for any more: what is here departs without being ready.
  void stop();

 private:
  struct Item {
    Readiness ready;
    OnReady on_ready;
  };

  void run();
  Outcome await(const Readiness& ready);

  const Rank to_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;  ///< the first one is being waited for
  std::atomic<bool> stopped_{false};
  std::thread thread_;
};

}  // namespace stagecraft::detail
