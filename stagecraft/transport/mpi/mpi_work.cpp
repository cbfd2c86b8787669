#include "stagecraft/transport/mpi/mpi_work.h"

#include <stdexcept>
#include <utility>

#include <sched.h>

#include "stagecraft/transport/mpi/mpi_progress.h"

namespace stagecraft::detail {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

// How long a waiting thread polls. If ranks share cores, other ranks could compute in this time, so
// it is shorter.
constexpr nanoseconds kBusy = microseconds(1000);
constexpr nanoseconds kBusyWithFewCores = microseconds(50);
// Longer for large messages, which travel at 0.5 GB/s or faster.
constexpr int64_t kNanosPerByte = 2;

}  // namespace

nanoseconds MpiWork::time_to_ask(int64_t bytes, bool has_core) {
  return (has_core ? kBusy : kBusyWithFewCores) + nanoseconds(bytes * kNanosPerByte);
}

MpiWork::MpiWork(MpiProgress& progress, Kind kind, void* group, Rank other, ByteTransport::Tag tag,
                 at::Tensor bytes)
    : progress_(progress),
      kind_(kind),
      group_(group),
      other_(other),
      tag_(tag),
      bytes_(std::move(bytes)),
      size_(static_cast<uint64_t>(bytes_.numel())) {}

std::optional<bool> MpiWork::look() {
  const uint32_t state = state_.load(std::memory_order_acquire);
  if ((state & kDone) != 0) return true;
  if ((state & kFailed) != 0) throw std::runtime_error(problem_);
  if ((state & kInterrupted) == 0) return std::nullopt;
  // An interrupt ends one wait only: the same work is waited for again, by a different thread
  // perhaps.
  state_.fetch_and(~kInterrupted);
  return false;
}

bool MpiWork::wait() {
  if (const auto seen = look()) return *seen;
  const bool is_large = size_ >= kLarge;
  if (is_large) progress_.count_large(static_cast<int64_t>(size_));
  progress_.touch();
  progress_.wake(true);
  const auto done = [&](bool result) {
    if (is_large) progress_.count_large(-static_cast<int64_t>(size_));
    return result;
  };
  try {
    for (;;) {
      // Loaded before the look: a change after it makes state_.wait return at once.
      const uint32_t before = state_.load(std::memory_order_acquire);
      if (const auto seen = look()) return done(*seen);
      state_.wait(before);
    }
  } catch (...) {
    done(false);
    throw;
  }
}

bool MpiWork::wait_busily() {
  const bool has_core = progress_.has_a_core_each();
  const int64_t large = size_ < kLarge ? 0 : static_cast<int64_t>(size_);
  const auto limit = Deadline::Clock::now() + time_to_ask(large, has_core);
  struct Busy {
    explicit Busy(MpiProgress& p) : progress(p) { ++progress.busy_waiters_; }
    ~Busy() {
      progress.last_busy_ = Deadline::Clock::now().time_since_epoch().count();
      --progress.busy_waiters_;
      // No thread polls now, and large messages stand still without polls.
      if (progress.large_bytes_ > 0) progress.wake(true);
    }
    MpiProgress& progress;
  };
  {
    const Busy busy(progress_);
    do {
      // The clock is read once for eight polls.
      for (int i = 0; i < 8; ++i) {
        if (const auto seen = look()) return *seen;
        // A different thread is inside MPI, needs this core, or waits for the mutex.
        if (!progress_.advance() || !has_core || progress_.wanted_ > 0) sched_yield();
      }
    } while (Deadline::Clock::now() < limit);
  }
  return wait();
}

void MpiWork::interrupt() {
  set(kInterrupted);
}

void MpiWork::give_up() {
  if (is_over()) return;
  // Before the bit: a thread that sees the bit reads the text without a lock.
  problem_ = "the connection is lost";
  set(kFailed);
}

void MpiWork::set(uint32_t bit) {
  state_.fetch_or(bit, std::memory_order_acq_rel);
  state_.notify_all();
}

}  // namespace stagecraft::detail
