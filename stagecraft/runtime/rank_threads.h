#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// One thread for each rank, which lives from step to step and is named "rank R".
class RankThreads {
 public:
  /// `start` runs on each thread before its first work. Throws std::system_error if the system
  /// cannot start a thread.
  RankThreads(int32_t ranks, const std::function<void(Rank)>& start);
  /// Waits for the threads to end.
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  /// Calls `work` on every thread, and returns when all calls have ended: the exception of each
  /// rank, or null. If a tick of the caller's wait (base/wait_tick.h) throws, `on_interrupt` is
  /// called with the exception, once, and must make the calls end. Without `on_interrupt` the wait
  /// has no ticks. REQUIRES that it is not called from two threads at once, or from `work`.
  std::vector<std::exception_ptr> run(
      const std::function<void(Rank)>& work,
      const std::function<void(std::exception_ptr)>& on_interrupt = {});

 private:
  void serve(Rank rank);
  /// Ends the threads that were started and waits for them.
  void end();

  std::mutex mutex_;
  std::condition_variable has_work_;
  std::condition_variable is_done_;
  const std::function<void(Rank)>* work_ = nullptr;
  uint64_t round_ = 0;
  int32_t running_ = 0;
  bool is_ending_ = false;
  std::vector<std::exception_ptr> thrown_;
  std::vector<std::thread> threads_;
};

}  // namespace stagecraft
