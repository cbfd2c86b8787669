#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <span>
#include <string>

#include "stagecraft/schedule/action.h"
#include "stagecraft/transport/core/progress.h"
#include "stagecraft/transport/core/transfer_id.h"

namespace stagecraft {

/// Where a rank is: written by its thread, a few stores an action, read by any other. A reader may
/// see a little of one moment and a little of the next.
class ProgressMark {
 public:
  /// A wait that is under way while it lives; one that ends by an exception stays to be seen.
  class Waiting {
   public:
    /// For a transfer from that rank.
    Waiting(ProgressMark& mark, Rank from, const TransferId& id);
    /// For all ranks, at the end or the start of a step, and the like: `what` must be a literal.
    Waiting(ProgressMark& mark, const char* what);
    ~Waiting() {
      if (std::uncaught_exceptions() == exceptions_) mark_.end_wait();
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    ProgressMark& mark_;
    int exceptions_ = std::uncaught_exceptions();
  };

  void start_step(uint64_t step) { step_.store(step, std::memory_order_relaxed); }
  void begin(Action action) { current_.store(action, std::memory_order_relaxed); }
  void end(Action action, Action outer) {
    finished_.store(action, std::memory_order_relaxed);
    finished_step_.store(step_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    current_.store(outer, std::memory_order_relaxed);
  }
  /// Nothing is under way any more.
  void stop() {
    current_.store(Action(), std::memory_order_relaxed);
    end_wait();
  }

  RankProgress read() const;

 private:
  enum class Kind : uint8_t { kNothing, kTransfer, kAll };

  void end_wait() { kind_.store(Kind::kNothing, std::memory_order_relaxed); }

  std::atomic<uint64_t> step_{0};
  std::atomic<Action> current_{Action()};
  std::atomic<Action> finished_{Action()};
  std::atomic<uint64_t> finished_step_{0};

  std::atomic<Kind> kind_{Kind::kNothing};
  std::atomic<int64_t> since_{0};  // by the clock, in nanoseconds
  std::atomic<const char*> what_{""};
  std::atomic<int32_t> from_{-1};
  std::atomic<Direction> direction_{Direction::kForward};
  std::atomic<int32_t> from_stage_{0};
  std::atomic<int32_t> to_stage_{0};
  std::atomic<int32_t> microbatch_{0};
};

/// A table with a line for each rank: what it has finished, what it is in, what it waits for and
/// from whom.
std::string progress_table(std::span<const HeardProgress> ranks);

}  // namespace stagecraft
