#include "stagecraft/transport/nccl/nccl_link.h"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "stagecraft/base/check.h"
#include "stagecraft/base/thread_name.h"
#include "stagecraft/transport/core/exchange_errors.h"

namespace stagecraft::detail {
namespace {

// How `settle` polls. In most cases the device has already completed all receives, and one poll is
// enough. After this many polls the thread sleeps between two of them.
constexpr int kBusyTurns = 200;
constexpr auto kDeviceNap = std::chrono::microseconds(20);

}  // namespace

bool NcclLink::open(Rank to, uint64_t epoch, const std::function<bool()>& is_closed) {
  return pairs_.open(
      to, epoch, [&](const std::string& key) { world_->send_key(to, epoch, key); },
      [&] { return is_closed() || world_->abort_reason() != nullptr; });
}

bool NcclLink::connect(Rank peer, uint64_t epoch, const std::function<bool()>& is_closed) {
  const auto wait_for_peer = [&] {
    return pairs_.wait_accepted(peer, epoch,
                                [&] { return is_closed() || world_->abort_reason() != nullptr; });
  };
  // Both ranks take the two directions of their pair in the same order, so one connection is made
  // at a time (Transport::connect tells why).
  if (world_->rank() < peer) return open(peer, epoch, is_closed) && wait_for_peer();
  return wait_for_peer() && open(peer, epoch, is_closed);
}

void NcclLink::begin_epoch(Deadline deadline) {
  const std::lock_guard lock(ending_);
  try {
    // A transfer of the last epoch may keep a thread inside NCCL, and that thread may hold the
    // stream of frames. Its communicators are therefore ended before the ranks synchronise.
    pairs_.begin_epoch(world_->epoch());
    // A key of this epoch must not reach a rank before the rank has begun the epoch.
    world_->synchronise(deadline);
  } catch (...) {
    // Communicators of this epoch may exist already, and no rank will use them.
    pairs_.abort();
    if (!world_->abort_reason()) {
      world_->abort(reason_for(world_->rank(), std::current_exception()));
    }
    throw;
  }
}

// A transfer that NCCL gives up looks complete on its stream. But communicators are aborted only
// after the world is, and an NCCL error persists until then: so both are checked after the
// arrivals.
void NcclLink::settle(Deadline deadline) {
  const auto begin = Deadline::Clock::now();
  for (int turn = 0;; ++turn) {
    std::optional<Rank> missing = pairs_.find_missing();
    bool is_settled = false;
    if (!missing) {
      const std::unique_lock lock(ending_, std::try_to_lock);
      const auto failure = lock.owns_lock() ? pairs_.find_failure() : std::nullopt;
      is_settled = lock.owns_lock() && !failure;
      if (failure) missing = failure->rank;
    }
    if (const auto reason = world_->abort_reason()) {
      throw PeerError(reason->message, reason->rank, reason->cause);
    }
    if (is_settled) return;
    if (deadline.has_passed()) {
      throw_timeout(world_->rank(), Deadline::Clock::now() - begin,
                    fmt::format("the values that rank {} sent over NCCL",
                                missing.value_or(world_->rank()).value()));
    }
    if (turn < kBusyTurns) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kDeviceNap);
    }
  }
}

void NcclLink::on_tick() {
  const std::unique_lock lock(ending_, std::try_to_lock);
  // The thread that begins an epoch detects an abort itself.
  if (!lock.owns_lock()) return;
  // The world may have recovered between two ticks, so the reason alone is not enough.
  const bool is_over =
      pairs_.is_cancelled() || pairs_.epoch() != world_->epoch() || world_->abort_reason();
  if (is_over) pairs_.abort();
  auto failure = is_over ? std::nullopt : pairs_.find_failure();
  const auto now = Deadline::Clock::now();
  if (!failure) failing_since_.reset();
  if (failure && !failing_since_) failing_since_ = now;
  // A rank that aborts its communicators looks like a failure of NCCL. Its reason usually arrives
  // over gloo within this time.
  if (!failure || now - *failing_since_ < kGrace) return;
  fail(std::move(*failure));
}

// The world must be aborted before the communicators, because an aborted receive looks complete but
// has no value. But notifying the peers may need the abort of the communicators, because a thread
// inside NCCL holds the stream of frames. So the world is aborted on a separate thread.
void NcclLink::fail(AbortReason reason) {
  std::thread notifier([&] {
    name_thread("sc nccl abort");
    world_->abort(std::move(reason));
  });
  while (!pairs_.is_cancelled() && !world_->abort_reason()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  pairs_.abort();
  notifier.join();
}

}  // namespace stagecraft::detail
