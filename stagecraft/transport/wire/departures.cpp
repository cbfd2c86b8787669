#include "stagecraft/transport/wire/departures.h"

#include <exception>
#include <utility>

#include "stagecraft/base/error.h"
#include "stagecraft/base/thread_name.h"

namespace stagecraft::detail {

Departures::Departures(Rank to) : to_(to), thread_([this] { run(); }) {}

Departures::~Departures() {
  stop();
  thread_.join();
}

void Departures::add(Readiness ready, Depart depart) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_) {
      items_.push_back({std::move(ready), std::move(depart)});
      changed_.notify_all();
      return;
    }
  }
  depart({});
}

bool Departures::flush(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline.at(), [&] { return items_.empty(); });
}

void Departures::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

Departures::Outcome Departures::await(const Readiness& ready) {
  try {
    return {.is_ready = ready.wait([this] { return stopped_.load(); })};
  } catch (...) {
    return {.failure = describe(std::current_exception())};
  }
}

void Departures::run() {
  name_thread("sc post " + to_string(to_));
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopped_ || !items_.empty(); });
    if (items_.empty()) return;
    // Whoever adds something does not move it.
    const Item& item = items_.front();
    lock.unlock();
    item.depart(await(item.ready));
    // Its tensors are let go of without the lock.
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
