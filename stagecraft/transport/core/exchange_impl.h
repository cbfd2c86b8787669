#pragma once

#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stagecraft/base/error.h"
#include "stagecraft/transport/core/exchange.h"
#include "stagecraft/transport/core/exchange_errors.h"

namespace stagecraft::detail {

// Order of locks (docs/threads.md): recoveries_, then WorldState::changing_, then one mailbox or
// collectives_, then WorldState::reason_mutex_.

template <typename Payload>
PendingPtr Exchange<Payload>::post_send(Rank from, Rank to, const TransferId& id,
                                        Payload&& payload) {
  const auto now = Deadline::Clock::now();
  world_.require_rank(to, "post_send");
  auto& box = mailbox(to);
  auto lock = box.waiters.lock();
  world_.throw_if_aborted();
  if (world_.has_left(to)) throw_has_left(to, from, "it to receive " + to_string(id));
  auto& transfer = find_or_make(box, to, {from, id});
  if (transfer->has(TransferState::kSent)) throw_sent_twice(*transfer);
  transfer->payload = std::move(payload);
  transfer->sent = now;
  PendingPtr send = done_send_;
  if (options_.zero_buffering) send = std::make_shared<SendHandle>(world_.number(), transfer);
  transfer->set(TransferState::kSent);
  box.waiters.unlock_and_wake(lock);
  return send;
}

template <typename Payload>
PendingPtr Exchange<Payload>::post_receive(Rank to, Rank from, const TransferId& id) {
  world_.require_rank(from, "post_receive");
  auto& box = mailbox(to);
  auto lock = box.waiters.lock();
  world_.throw_if_aborted();
  auto& place = find_or_make(box, to, {from, id});
  if (place->has(TransferState::kPosted)) throw_posted_twice(*place);
  TransferPtr transfer = place;
  transfer->set(TransferState::kPosted);
  if (!transfer->has(TransferState::kSent) && world_.has_left(from)) {
    transfer->set(TransferState::kLeft);
  }
  // A sender waits for this receive only with zero buffering.
  if (options_.zero_buffering) box.waiters.unlock_and_wake(lock);
  return transfer;
}

template <typename Payload>
void Exchange<Payload>::wait_send(Rank from, const PendingPtr& send, Deadline deadline) {
  world_.throw_if_aborted();
  TransferState* const transfer = checked_send(world_, from, send);
  if (transfer == nullptr) return;
  const bool had_left = transfer->has(TransferState::kLeft);
  const auto begin = Deadline::Clock::now();
  if (!wait_for(*transfer, TransferState::kPosted | TransferState::kEnded, deadline)) {
    throw_timeout(from, Deadline::Clock::now() - begin, name_send(*transfer));
  }
  if (transfer->has(TransferState::kAborted)) world_.throw_if_aborted();
  if (transfer->has(TransferState::kPosted)) return;
  fail_wait(from, transfer->to(), had_left, name_send(*transfer));
}

template <typename Payload>
auto Exchange<Payload>::wait_receive(Rank to, const PendingPtr& receive, Deadline deadline)
    -> Arrival {
  world_.throw_if_aborted();
  auto& transfer = static_cast<Transfer&>(checked_receive(world_, to, receive));
  const bool had_left = transfer.has(TransferState::kLeft);
  if (!transfer.has(TransferState::kSent | TransferState::kEnded)) {
    const auto begin = Deadline::Clock::now();
    if (!wait_for(transfer, TransferState::kSent | TransferState::kEnded, deadline)) {
      throw_timeout(to, Deadline::Clock::now() - begin, name_receive(transfer));
    }
  }
  if (transfer.has(TransferState::kAborted)) world_.throw_if_aborted();
  if (!transfer.has(TransferState::kSent)) {
    fail_wait(to, transfer.key().from, had_left, name_receive(transfer));
  }
  auto& box = mailbox(to);
  const auto lock = box.waiters.lock();
  // An abort may have taken the payload since the check above.
  if (transfer.has(TransferState::kAborted)) world_.throw_if_aborted();
  transfer.set(TransferState::kTaken);
  box.transfers.erase(transfer.key());
  return {std::move(transfer.payload), transfer.sent};
}

template <typename Payload>
bool Exchange<Payload>::wait_for(TransferState& transfer, TransferState::Bits any_of,
                                 Deadline deadline) {
  const auto over = [&] { return transfer.has(any_of); };
  if (spin_until(over, options_.spin, deadline)) return true;
  auto& box = mailbox(transfer.to());
  auto lock = box.waiters.lock();
  return box.waiters.wait(lock, deadline, over);
}

template <typename Payload>
void Exchange<Payload>::fail_wait(Rank rank, Rank peer, bool had_left, const std::string& what) {
  if (had_left) throw_has_left(peer, rank, what);
  abort(reason_left(peer, rank, what));
  world_.throw_if_aborted();
  throw_has_left(peer, rank, what);
}

template <typename Payload>
template <typename OnMet, typename T>
auto Exchange<Payload>::meet(Rendezvous<T>& where, Rank rank, const std::string& call, T payload,
                             Deadline deadline, const OnMet& on_met) {
  const auto begin = Deadline::Clock::now();
  auto result = where.meet(rank, call, std::move(payload), deadline, options_.spin, on_met);
  if (result.outcome != MeetingResult::Outcome::kMet) {
    throw_unmet(world_, rank, call, result, Deadline::Clock::now() - begin,
                [this](AbortReason reason) { abort(std::move(reason)); });
  }
  require_same_calls(result.round->calls);
  return std::shared_ptr<const std::vector<T>>(result.round, &result.round->payloads);
}

template <typename Payload>
std::shared_ptr<const std::vector<Payload>> Exchange<Payload>::gather(Rank rank,
                                                                      const std::string& call,
                                                                      Payload payload,
                                                                      Deadline deadline) {
  return meet(collectives_, rank, call, std::move(payload), deadline, [] {});
}

template <typename Payload>
auto Exchange<Payload>::abort(AbortReason reason) -> Payloads {
  Payloads discarded;
  const std::function<void()> tell_all = [&] {
    for (auto& box : mailboxes_) {
      auto lock = box.waiters.lock();
      for (auto& [key, transfer] : box.transfers) {
        transfer->set(TransferState::kAborted);
        // No rank can receive the value any more, so it is released now, not at the recovery.
        discarded.push_back(std::move(transfer->payload));
      }
      box.waiters.unlock_and_wake(lock);
    }
    collectives_.wake();
  };
  world_.abort(std::move(reason), tell_all);
  return discarded;
}

template <typename Payload>
void Exchange<Payload>::recover(Rank rank, Deadline deadline) {
  Forgotten forgotten;
  meet(recoveries_, rank, "recover", Nothing(), deadline, [&] { forgotten = forget(); });
}

template <typename Payload>
auto Exchange<Payload>::forget() -> Forgotten {
  Forgotten forgotten;
  forgotten.reason = world_.recover([&] {
    for (auto& box : mailboxes_) {
      const auto lock = box.waiters.lock();
      discard(box, TransferState::kForgotten, forgotten.payloads);
    }
  });
  return forgotten;
}

template <typename Payload>
void Exchange<Payload>::leave(Rank rank) {
  Payloads discarded;
  world_.leave(rank);
  for (auto& box : mailboxes_) {
    auto lock = box.waiters.lock();
    if (&box == &mailbox(rank)) {
      discard(box, TransferState::kLeft, discarded);
    } else {
      for (auto entry = box.transfers.begin(); entry != box.transfers.end();) {
        const auto transfer = entry->second;
        // Values that the rank has sent stay available. With zero buffering they do not: their
        // sends are not done.
        const bool unsent = !transfer->has(TransferState::kSent);
        const bool kept_back = options_.zero_buffering && !transfer->has(TransferState::kPosted);
        const bool gone = entry->first.from == rank && (unsent || kept_back);
        if (gone) transfer->set(TransferState::kLeft);
        if (gone && kept_back) discarded.push_back(std::move(transfer->payload));
        entry = gone && kept_back ? box.transfers.erase(entry) : std::next(entry);
      }
    }
    box.waiters.unlock_and_wake(lock);
  }
  collectives_.wake();
  recoveries_.wake();
}

template <typename Payload>
void Exchange<Payload>::discard(Mailbox& box, TransferState::Bits mark, Payloads& discarded) {
  for (auto& [key, transfer] : box.transfers) {
    transfer->set(mark);
    discarded.push_back(std::move(transfer->payload));
  }
  box.transfers.clear();
}

}  // namespace stagecraft::detail
