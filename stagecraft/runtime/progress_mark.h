#pragma once

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>
#include <exception>
#include <span>
#include <string>

#include "stagecraft/schedule/action.h"
#include "stagecraft/transport/core/progress.h"
#include "stagecraft/transport/core/transfer_id.h"

namespace stagecraft {

/// The position of a rank in its list. The rank's thread writes it, a few relaxed stores for each
/// action. Any thread may read it, and may see parts of two consecutive states.
class ProgressMark {
 public:
  /// Marks a wait during its lifetime. If an exception ends the wait, the mark stays visible.
  class Waiting {
   public:
    /// Waits for a transfer from a rank.
    Waiting(ProgressMark& mark, Rank from, const TransferId& id);
    /// Waits for all ranks, for example at the end of a step. `what` must be a literal.
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
  void begin(Action action) { current_.store(action); }
  void end(Action action, Action outer) {
    finished_.store(action);
    finished_step_.store(step_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    current_.store(outer);
  }
  /// Marks the end of the step.
  void stop() {
    current_.store(Action());
    end_wait();
  }

  RankProgress read() const;

 private:
  enum class Kind : uint8_t { kNothing, kTransfer, kAll };

  /// An action in one atomic word. For std::atomic<Action>, which is aligned to four bytes, clang
  /// would call libatomic.
  class AtomicAction {
   public:
    Action load() const { return std::bit_cast<Action>(bits_.load(std::memory_order_relaxed)); }
    void store(Action action) {
      bits_.store(std::bit_cast<uint64_t>(action), std::memory_order_relaxed);
    }

   private:
    std::atomic<uint64_t> bits_{std::bit_cast<uint64_t>(Action())};
  };

  void end_wait() { kind_.store(Kind::kNothing, std::memory_order_relaxed); }

  std::atomic<uint64_t> step_{0};
  AtomicAction current_;
  AtomicAction finished_;
  std::atomic<uint64_t> finished_step_{0};

  std::atomic<Kind> kind_{Kind::kNothing};
  std::atomic<int64_t> since_{0};  // nanoseconds since the clock's epoch
  std::atomic<const char*> what_{""};
  std::atomic<int32_t> from_{-1};
  std::atomic<Direction> direction_{Direction::kForward};
  std::atomic<int32_t> from_stage_{0};
  std::atomic<int32_t> to_stage_{0};
  std::atomic<int32_t> microbatch_{0};
};

/// A table with a line for each rank: its last finished action, its current action, what it waits
/// for, and from which rank.
std::string progress_table(std::span<const HeardProgress> ranks);

}  // namespace stagecraft
