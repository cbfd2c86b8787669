#include "stagecraft/transport/core/exchange_errors.h"

#include "stagecraft/base/check.h"

namespace stagecraft::detail {

std::string name_receive(const TransferState& transfer) {
  return fmt::format("{}, from rank {}", to_string(transfer.key().id), transfer.key().from.value());
}

std::string name_send(const TransferState& transfer) {
  return fmt::format("rank {} to post the receive of {}", transfer.to().value(),
                     to_string(transfer.key().id));
}

void throw_sent_twice(const TransferState& transfer) {
  throw ArgumentError(fmt::format(
      "rank {} sent to rank {} twice, before the first value was received: {}",
      transfer.key().from.value(), transfer.to().value(), to_string(transfer.key().id)));
}

void throw_posted_twice(const TransferState& transfer) {
  throw ArgumentError(
      fmt::format("rank {} posted a receive twice, before the first was waited for: {}",
                  transfer.to().value(), name_receive(transfer)));
}

void throw_timeout(Rank rank, Deadline::Clock::duration waited, const std::string& what) {
  throw TimeoutError(
      fmt::format("rank {} waited {} for {}", rank.value(), describe_wait(waited), what));
}

void throw_has_left(Rank peer, Rank rank, const std::string& what) {
  throw PeerError(fmt::format("rank {} has left, so rank {} cannot wait for {}", peer.value(),
                              rank.value(), what),
                  peer);
}

AbortReason reason_left(Rank peer, Rank rank, const std::string& what) {
  return {peer, fmt::format("rank {} left while rank {} waited for {}", peer.value(), rank.value(),
                            what)};
}

TransferState& checked_receive(const WorldState& world, Rank rank, const PendingPtr& pending) {
  auto* const transfer = dynamic_cast<TransferState*>(pending.get());
  require<ArgumentError>(transfer != nullptr, "wait_receive of rank {}: {}", rank.value(),
                         pending ? "this is not a receive" : "there is no receive");
  const bool is_of_rank = transfer->world() == world.number() && transfer->to() == rank;
  if (is_of_rank && !transfer->has(TransferState::kTaken | TransferState::kForgotten)) {
    return *transfer;
  }
  // The last problem that applies is reported. A receive of a different world comes last: its other
  // properties mean nothing here.
  std::string problem = "was posted before the world recovered";
  if (transfer->has(TransferState::kTaken)) problem = "was already waited for";
  if (transfer->to() != rank) problem = "was posted by rank " + to_string(transfer->to());
  if (transfer->world() != world.number()) problem = "belongs to a different world";
  throw ArgumentError(fmt::format("wait_receive of rank {}: the receive of {} {}", rank.value(),
                                  name_receive(*transfer), problem));
}

TransferState* checked_send(const WorldState& world, Rank rank, const PendingPtr& pending) {
  const auto* const send = dynamic_cast<const SendHandle*>(pending.get());
  require<ArgumentError>(send != nullptr, "wait_send of rank {}: {}", rank.value(),
                         pending ? "this is not a send" : "there is no send");
  require<ArgumentError>(send->world() == world.number(),
                         "wait_send of rank {}: the send belongs to a different world",
                         rank.value());
  auto* const transfer = send->transfer().get();
  // Without zero buffering a send is done when it is posted.
  if (transfer == nullptr) return nullptr;
  // A send whose receive was posted before the recovery is done: the receiver had the value.
  const bool is_lost =
      transfer->has(TransferState::kForgotten) && !transfer->has(TransferState::kPosted);
  if (transfer->key().from == rank && !is_lost) return transfer;
  throw ArgumentError(fmt::format(
      "wait_send of rank {}: the send of {} was posted {}", rank.value(),
      to_string(transfer->key().id),
      is_lost ? "before the world recovered" : "by rank " + to_string(transfer->key().from)));
}

}  // namespace stagecraft::detail
