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

/// Values that must wait before they can be posted: until the device has computed them, or because
/// posting takes long. A thread posts them in order.
class SendQueue {
 public:
  /// The result of a wait: ready, stopped, or the message of a device that failed.
  struct Outcome {
    bool is_ready = false;
    std::string failure = {};
  };
  using OnReady = std::function<void(const Outcome&)>;

  explicit SendQueue(Rank to);
  /// Stops the thread and joins it.
  ~SendQueue();
  SendQueue(const SendQueue&) = delete;
  SendQueue& operator=(const SendQueue&) = delete;

  void add(Readiness ready, OnReady on_ready);
  /// Waits until the queue is empty; false at the deadline.
  bool flush(Deadline deadline);
  /// Ends all waits: the callbacks of all values in the queue are called as not ready.
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
  std::deque<Item> items_;  ///< the thread waits for the first one
  std::atomic<bool> stopped_{false};
  std::thread thread_;
};

}  // namespace stagecraft::detail
