#include "stagecraft/runtime/rank_threads.h"

#include <string>
#include <utility>

#include "stagecraft/base/assert.h"
#include "stagecraft/base/thread_name.h"
#include "stagecraft/base/wait_tick.h"

namespace stagecraft {

RankThreads::RankThreads(int32_t ranks, const std::function<void(Rank)>& start) {
  thrown_.resize(static_cast<std::size_t>(ranks));
  threads_.reserve(static_cast<std::size_t>(ranks));
  try {
    for (int32_t r = 0; r < ranks; ++r) {
      threads_.emplace_back([this, r, start] {
        detail::name_thread("rank " + std::to_string(r));
        start(Rank(r));
        serve(Rank(r));
      });
    }
  } catch (...) {
    // The destructor does not run, and a thread that is not joined would end the process.
    end();
    throw;
  }
}

RankThreads::~RankThreads() {
  end();
}

void RankThreads::end() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  has_work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::vector<std::exception_ptr> RankThreads::run(
    const std::function<void(Rank)>& work,
    const std::function<void(std::exception_ptr)>& on_interrupt) {
  std::unique_lock lock(mutex_);
  SC_ASSERT(work_ == nullptr);
  work_ = &work;
  running_ = static_cast<int32_t>(threads_.size());
  ++round_;
  has_work_.notify_all();
  const auto is_over = [&] { return running_ == 0; };
  bool has_ticks = on_interrupt && WaitTick::is_set();
  while (has_ticks && !is_done_.wait_for(lock, WaitTick::kPeriod, is_over)) {
    lock.unlock();
    try {
      WaitTick::call();
    } catch (...) {
      has_ticks = false;
      on_interrupt(std::current_exception());
    }
    lock.lock();
  }
  is_done_.wait(lock, is_over);
  work_ = nullptr;
  return std::exchange(thrown_, std::vector<std::exception_ptr>(threads_.size()));
}

void RankThreads::serve(Rank rank) {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    has_work_.wait(lock, [&] { return is_ending_ || round_ != seen; });
    if (is_ending_) return;
    seen = round_;
    lock.unlock();
    std::exception_ptr thrown;
    try {
      (*work_)(rank);
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    thrown_[rank.position()] = std::move(thrown);
    if (--running_ == 0) is_done_.notify_one();
  }
}

}  // namespace stagecraft
