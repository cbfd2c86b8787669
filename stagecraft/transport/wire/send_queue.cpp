#include "stagecraft/transport/wire/send_queue.h"

#include <exception>
#include <utility>

#include "stagecraft/base/error.h"
#include "stagecraft/base/thread_name.h"

namespace stagecraft::detail {

SendQueue::SendQueue(Rank to) : to_(to), thread_([this] { run(); }) {}

SendQueue::~SendQueue() {
  stop();
  thread_.join();
}

void SendQueue::add(Readiness ready, OnReady on_ready) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_) {
      items_.push_back({std::move(ready), std::move(on_ready)});
      changed_.notify_all();
      return;
    }
  }
  // Without the lock: on_ready takes locks of the outbox, which come before this one
  // (docs/threads.md).
  on_ready({});
}

bool SendQueue::flush(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline.at(), [&] { return items_.empty(); });
}

void SendQueue::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

SendQueue::Outcome SendQueue::await(const Readiness& ready) {
  try {
    return {.is_ready = ready.wait([this] { return stopped_.load(); })};
  } catch (...) {
    return {.failure = describe(std::current_exception())};
  }
}

void SendQueue::run() {
  name_thread("sc post " + to_string(to_));
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopped_ || !items_.empty(); });
    // Not at once when stopped: every value needs its on_ready, which finishes it as lost.
    if (items_.empty()) return;
    // `add` does not move existing items.
    const Item& item = items_.front();
    lock.unlock();
    // The item stays in the queue meanwhile: `flush` must wait until the value is posted, not only
    // until it is taken.
    item.on_ready(await(item.ready));
    // Tensors are released without the lock: that can take long.
    std::deque<Item> gone;
    lock.lock();
    gone.push_back(std::move(items_.front()));
    items_.pop_front();
    changed_.notify_all();
    lock.unlock();
    gone.clear();
    lock.lock();
  }
}

}  // namespace stagecraft::detail
