#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"
#include "stagecraft/transport/core/meeting_result.h"
#include "stagecraft/transport/core/wait_queue.h"
#include "stagecraft/transport/core/world_state.h"

namespace stagecraft::detail {

/// A repeated meeting of all ranks of a world. Each rank contributes a payload and the name of its
/// call, and gets the contributions of all ranks.
template <typename Payload>
class Rendezvous {
 public:
  /// One meeting.
  struct Round {
    explicit Round(std::size_t ranks) : payloads(ranks), calls(ranks), came(ranks, false) {}

    std::vector<Payload> payloads;   ///< by rank
    std::vector<std::string> calls;  ///< by rank
    std::vector<bool> came;
    std::size_t num_came = 0;
    std::atomic<bool> met{false};
  };

  struct Result : MeetingResult {
    /// Null unless met. Not changed afterwards.
    std::shared_ptr<const Round> round = nullptr;
  };

  /// With `heeds_abort`, a meeting fails when the world is aborted. A meeting always fails when a
  /// rank has left.
  Rendezvous(const WorldState& world, bool heeds_abort)
      : world_(world),
        heeds_abort_(heeds_abort),
        round_(std::make_shared<Round>(static_cast<std::size_t>(world.num_ranks()))) {}

  /// Waits for all ranks. The last rank calls `on_met` while the others still wait. A rank that
  /// fails to meet the others is removed, and may try again.
  template <typename OnMet>
  Result meet(Rank rank, const std::string& call, Payload payload, Deadline deadline,
              Deadline::Clock::duration spin, const OnMet& on_met) {
    const auto place = rank.position();
    Payload withdrawn = Payload();  // destroyed after the lock is released: it may take long
    auto lock = waiters_.lock();
    if (const auto before = disturbance()) return {{*before, {}, /*waited=*/false}};
    const auto round = round_;
    round->payloads[place] = std::move(payload);
    round->calls[place] = call;
    round->came[place] = true;
    if (++round->num_came == round->came.size()) {
      round_ = std::make_shared<Round>(round->came.size());
      on_met();
      round->met.store(true, std::memory_order_release);
      waiters_.unlock_and_wake(lock);
      return {{}, round};
    }
    lock.unlock();

    const auto over = [&] { return round->met.load(std::memory_order_acquire) || disturbance(); };
    spin_until(over, spin, deadline);
    if (round->met.load(std::memory_order_acquire)) return {{}, round};
    lock.lock();
    const auto withdraw = [&] {
      round->came[place] = false;
      --round->num_came;
      withdrawn = std::exchange(round->payloads[place], Payload());
    };
    try {
      waiters_.wait(lock, deadline, over);
    } catch (...) {
      if (!round->met.load(std::memory_order_relaxed)) withdraw();
      throw;
    }
    if (round->met.load(std::memory_order_relaxed)) return {{}, round};

    Result result{{disturbance().value_or(MeetingResult::Outcome::kTimedOut)}};
    for (std::size_t i = 0; i < round->came.size(); ++i) {
      if (!round->came[i]) result.missing.push_back(Rank(static_cast<int32_t>(i)));
    }
    withdraw();
    return result;
  }

  /// Wakes waiting ranks after the world was aborted or a rank left.
  void wake() {
    auto lock = waiters_.lock();
    waiters_.unlock_and_wake(lock);
  }

 private:
  std::optional<MeetingResult::Outcome> disturbance() const {
    return find_disturbance(world_, heeds_abort_);
  }

  const WorldState& world_;
  bool heeds_abort_;
  WaitQueue waiters_;
  std::shared_ptr<Round> round_;
};

}  // namespace stagecraft::detail
