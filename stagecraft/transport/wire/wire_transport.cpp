#include "stagecraft/transport/wire/wire_transport.h"

#include <algorithm>
#include <utility>

#include "stagecraft/base/assert.h"
#include "stagecraft/base/check.h"
#include "stagecraft/base/wait_tick.h"
#include "stagecraft/transport/core/exchange_errors.h"
#include "stagecraft/transport/device/device_fence.h"
#include "stagecraft/transport/wire/bytes.h"

namespace stagecraft::detail {
namespace {

// A send to a different process.
class WireSend final : public Pending {
 public:
  WireSend(uint64_t world, uint64_t epoch, Rank to, const TransferId& id, SendingPtr sending)
      : world_(world), epoch_(epoch), to_(to), id_(id), sending_(std::move(sending)) {}

  uint64_t world() const { return world_; }
  Rank to() const { return to_; }
  const TransferId& id() const { return id_; }
  FrameHead head() const {
    FrameHead head;
    head.epoch = epoch_;
    head.set_transfer(id_);
    return head;
  }
  bool is_done() const override { return !sending_ || sending_->is_done(); }
  bool is_lost() const { return sending_ && sending_->is_lost(); }
  std::string failure() const { return is_lost() ? sending_->failure() : std::string(); }

 private:
  uint64_t world_;
  uint64_t epoch_;
  Rank to_;
  TransferId id_;
  SendingPtr sending_;
};

}  // namespace

WireTransport::Peer::Peer(Rank rank, WireTransport& owner)
    : outbox(
          *owner.byte_transport_, owner.link_.get(), rank, owner.options_.use_checksums,
          [&owner] {
            auto lock = owner.sends_.lock();
            owner.sends_.unlock_and_wake(lock);
          },
          [&owner](const FrameHead& head, const std::string& failure) {
            owner.on_unsent(head, failure);
          }),
      inbox(*owner.byte_transport_, owner.link_.get(), rank, owner) {}

WireTransport::WireTransport(std::unique_ptr<ByteTransport> byte_transport,
                             const WireOptions& options, std::unique_ptr<DeviceLink> link)
    : byte_transport_(std::move(byte_transport)),
      link_(std::move(link)),
      rank_(byte_transport_->rank()),
      options_(options),
      exchange_(byte_transport_->num_ranks()),
      meetings_(
          rank_, exchange_.world(),
          [this](Rank to, const FrameHead& head, std::string_view body) {
            send_frame(to, head, body);
          },
          [this] { on_recovered(); }) {
  if (link_) link_->attach(*this);
  peers_ = IndexedVector<Rank, std::unique_ptr<Peer>>(num_ranks());
  for (Rank other(0); other.value() < num_ranks(); ++other) {
    if (other == rank_) continue;
    peers_[other] = std::make_unique<Peer>(other, *this);
  }
  // After all peers exist: a reader may answer any of them.
  for (const auto& peer : peers_) {
    if (peer) peer->inbox.start();
  }
  watchdog_ = std::make_unique<Watchdog>(kTick, [this] { on_tick(); });
  if (link_) {
    link_watchdog_ = std::make_unique<Watchdog>(DeviceLink::kTick, [this] { link_->on_tick(); });
  }
  // Last: a process that has already ended is reported at once, on a different thread.
  byte_transport_->watch({[this](Rank other) { return world().has_left(other); },
                          [this](Rank other) { on_process_ended(other); }});
}

WireTransport::~WireTransport() {
  link_watchdog_.reset();
  // A thread may be inside a call of the link that only an abort of the link ends.
  if (link_ && world().is_aborted()) link_->abort();
  // Before anything is closed: a peer that closes its connection now is not lost.
  is_leaving_ = true;
  poll_watchdog_.reset();
  watchdog_.reset();
  // A rank that leaves because of an abort sends the reason, even if a peer sent it first: ranks
  // that have not received it yet would take this rank for the one that failed.
  spread_ = 0;
  spread_abort();
  // Releases values that were received and not taken. Values that still arrive are dropped.
  exchange_.leave(rank_);
  say_goodbye();
  if (world().is_aborted()) byte_transport_->set_failed();
  byte_transport_->watch({});
  // A reader may answer any peer, so all readers must end before the first peer is destroyed.
  for (const auto& peer : peers_) {
    if (peer) peer->inbox.stop();
  }
  for (const auto& peer : peers_) {
    if (peer) peer->inbox.join();
  }
  for (auto& peer : peers_) peer.reset();
  if (link_) link_->close(options_.linger);
}

// Closing a socket with unread data resets it, and data in the other direction is lost. So a
// connection is closed after the peer has read everything (kSeen).
void WireTransport::say_goodbye() {
  FrameHead goodbye;
  goodbye.kind = FrameKind::kGoodbye;
  std::vector<Rank> told;
  const auto deadline = Deadline::after(options_.linger);
  for (Rank other(0); other.value() < num_ranks(); ++other) {
    if (other == rank_ || world().has_left(other)) continue;
    // The goodbye is the last frame, so queued values are posted before it.
    if (!world().is_aborted()) peer(other).outbox.flush(deadline);
    bool is_told = true;
    try {
      // A peer that leaves at the same time reads nothing after this rank's kSeen, which is sent
      // after the peer counts as left. A goodbye after kSeen would never be answered.
      is_told = peer(other).outbox.send_if([&] { return !world().has_left(other); }, goodbye);
    } catch (const ConnectionLost&) {
      // The inbox detects a lost connection, too.
    }
    if (is_told) told.push_back(other);
  }
  auto lock = sends_.lock();
  sends_.wait(lock, deadline, [&] {
    return std::all_of(told.begin(), told.end(),
                       [&](Rank other) { return peer(other).state.may_close(); });
  });
  lock.unlock();
  for (const Rank other : told) {
    // The peer did not answer within `linger`. Sends to it may never complete, and must not be
    // waited for.
    if (!peer(other).state.may_close()) byte_transport_->forget(other);
  }
}

// Transfers ------------------------------------------------------------------------------------

PendingPtr WireTransport::post_send(Rank to, const TransferId& id, c10::IValue value) {
  exchange_.require_rank(to, "post_send");
  if (to == rank_) {
    // Called only for its check of the tensors: within one rank there is no stream to wait for.
    DeviceFence::record(value);
    return exchange_.post_send(rank_, rank_, id, {std::move(value), nullptr});
  }
  world().throw_if_aborted();
  if (world().has_left(to)) throw_has_left(to, rank_, "it to receive " + to_string(id));
  FrameHead head;
  head.epoch = epoch_;
  head.set_transfer(id);
  auto encoded = encode(value, link_ ? std::optional(link_->device()) : std::nullopt);
  try {
    auto sending = peer(to).outbox.send_value(head, std::move(encoded));
    return std::make_shared<WireSend>(world().number(), head.epoch, to, id, std::move(sending));
  } catch (const ConnectionLost&) {
    throw_gone(to, "it to receive " + to_string(id));
  }
}

PendingPtr WireTransport::post_receive(Rank from, const TransferId& id) {
  auto pending = exchange_.post_receive(rank_, from, id);
  if (from == rank_) return pending;
  try {
    // After the mailbox has accepted the receive. A refused receive (posted twice) must not have
    // memory posted for it: no value would ever fill that memory.
    peer(from).inbox.layouts().expect(id, epoch_);
  } catch (const std::exception&) {
    // The connection is lost. The inbox reports it to the waiting thread.
  }
  return pending;
}

void WireTransport::wait_send(const PendingPtr& send, Deadline deadline) {
  const auto* const wire = dynamic_cast<const WireSend*>(send.get());
  // A send that failed on this rank has aborted the world. Its wait throws the send's error, not
  // the abort reason.
  const bool has_failed = wire != nullptr && !wire->failure().empty();
  if (!has_failed) world().throw_if_aborted();
  if (wire == nullptr) return exchange_.wait_send(rank_, send, deadline);
  require<ArgumentError>(wire->world() == world().number(),
                         "wait_send of rank {}: the send belongs to a different world",
                         rank_.value());
  if (!wire->is_done()) {
    const auto begin = Deadline::Clock::now();
    auto lock = sends_.lock();
    sends_.wait(lock, deadline, [&] { return wire->is_done() || world().is_aborted(); });
    lock.unlock();
    // The thread that could not send fails the send first, and then aborts the world.
    const bool has_failed_now = !wire->failure().empty();
    if (!has_failed_now) world().throw_if_aborted();
    if (!has_failed_now && !wire->is_done()) {
      throw_timeout(
          rank_, Deadline::Clock::now() - begin,
          fmt::format("rank {} to receive {}", wire->to().value(), to_string(wire->id())));
    }
  }
  if (!wire->failure().empty()) {
    // The thread that could not send does the same, but perhaps after this rank has left.
    on_unsent(wire->head(), wire->failure());
    throw Error(describe_unsent(wire->id(), wire->failure()));
  }
  if (wire->is_lost() || !wire->is_done())
    throw_gone(wire->to(), "it to receive " + to_string(wire->id()));
}

Received WireTransport::wait_receive(const PendingPtr& receive, Deadline deadline) {
  const auto* const transfer = dynamic_cast<const TransferState*>(receive.get());
  const bool is_remote = transfer != nullptr && transfer->world() == world().number() &&
                         transfer->key().from != rank_ && !transfer->is_done();
  // A read inside the communication library has no deadline. The watchdog ends it at its next tick,
  // up to 200 ms later, so a wait with a shorter deadline does not read.
  if (is_remote && deadline.at() - Deadline::Clock::now() > 2 * kTick) {
    if (WaitTick::is_set() && !poll_watchdog_) start_poll_watchdog();
    const Rank from = transfer->key().from;
    peer(from).inbox.poll_inline(receive);
    // The peer left while this rank waited, not before.
    const bool has_left =
        transfer->has(TransferState::kLeft) && !transfer->has(TransferState::kSent);
    if (has_left) abort(reason_left(from, rank_, name_receive(*transfer)));
  }
  try {
    auto arrival = exchange_.wait_receive(rank_, receive, deadline);
    auto& [value, fence] = arrival.payload;
    if (fence) fence->join(value);
    return {std::move(value), arrival.sent};
  } catch (const PeerError&) {
    // A wait for a rank that leaves aborts the world.
    tell_abort();
    throw;
  }
}

// A thread that reads inline sleeps inside the communication library, where no tick is called.
// After about one period, cancel_poll makes it wait where ticks are called.
void WireTransport::start_poll_watchdog() {
  poll_watchdog_ = std::make_unique<Watchdog>(WaitTick::kPeriod, [this] {
    for (const auto& peer : peers_) {
      if (peer) peer->inbox.cancel_poll();
    }
  });
}

void WireTransport::on_value(Rank from, const FrameHead& head, FencedValue value) {
  Payloads discarded;  // outlives the lock
  {
    // Held until the value is delivered: a recovery in between would leave a value of the old epoch
    // in a mailbox of the new one.
    const std::lock_guard lock(epoch_mutex_);
    if (head.epoch > epoch_) {
      // The peer has received kMet of the recovery, and this rank has not yet: the two frames come
      // on different connections.
      early_.push_back({from, head, std::move(value)});
    } else if (head.epoch == epoch_) {
      deliver(from, head, std::move(value), discarded);
    }
  }
  // Without the lock: frames are sent to all peers, and threads are woken.
  tell_abort();
}

void WireTransport::deliver(Rank from, const FrameHead& head, FencedValue&& value,
                            Payloads& discarded) {
  try {
    exchange_.post_send(from, rank_, head.transfer(), std::move(value));
  } catch (const PeerError&) {
    // The world is aborted: no rank receives it.
  } catch (const ArgumentError& error) {
    discarded = exchange_.abort({from, error.what()});
  }
}

std::string WireTransport::describe_unsent(const TransferId& id, const std::string& failure) const {
  return fmt::format("rank {} cannot send {}: {}", rank_.value(), to_string(id), failure);
}

// Without the abort, the receiver would wait until its deadline.
void WireTransport::on_unsent(const FrameHead& head, const std::string& failure) {
  Payloads discarded;  // outlives the lock
  {
    const std::lock_guard lock(epoch_mutex_);
    if (head.epoch != epoch_ || is_leaving_) return;
    discarded = exchange_.abort({rank_, describe_unsent(head.transfer(), failure)});
  }
  tell_abort();
}

void WireTransport::on_damaged(Rank from, const FrameHead& head, const std::string& what) {
  abort_epoch(head.epoch,
              {from, fmt::format("rank {}: {} arrived damaged at rank {}: {}", from.value(),
                                 to_string(head.transfer()), rank_.value(), what)});
}

void WireTransport::on_refused(Rank from, const FrameHead& head, const std::string& what) {
  abort_epoch(head.epoch,
              {rank_, fmt::format("rank {} cannot receive {} from rank {}: {}", rank_.value(),
                                  to_string(head.transfer()), from.value(), what)});
}

void WireTransport::abort_epoch(uint64_t epoch, AbortReason reason) {
  Payloads discarded;  // outlives the lock
  {
    // Held until the world is aborted: a recovery in between would abort the new epoch.
    const std::lock_guard lock(epoch_mutex_);
    if (epoch > epoch_) {
      // The peer has recovered before this rank, as in on_value.
      early_aborts_.push_back({epoch, std::move(reason), /*is_spread=*/false});
      return;
    }
    if (epoch != epoch_) return;
    discarded = exchange_.abort(std::move(reason));
  }
  // Without the lock: frames are sent to all peers, and threads are woken.
  tell_abort();
}

// Collectives and recovery ------------------------------------------------------------------------

WireTransport::Met WireTransport::meet(bool is_recovery, const std::string& call,
                                       const std::string& bytes, Deadline deadline) {
  using Outcome = MeetingResult::Outcome;
  const auto begin = Deadline::Clock::now();
  auto result = meetings_.meet(is_recovery, epoch_, call, bytes, deadline);
  if (result.outcome == Outcome::kAborted) tell_abort();
  if (result.outcome != Outcome::kMet) {
    throw_unmet(world(), rank_, call, result, Deadline::Clock::now() - begin,
                [this](AbortReason reason) { abort(std::move(reason)); });
  }
  // On every rank, with the same calls: all ranks throw the same error.
  require_same_calls(result.met->calls);
  return result.met;
}

void WireTransport::recover(Deadline deadline) {
  meet(/*is_recovery=*/true, "recover", {}, deadline);
  begin_link(deadline);
}

void WireTransport::begin_link(Deadline deadline) {
  if (link_) link_->begin_epoch(deadline);
}

// Every rank connects to its peers in ascending order. All pairs are therefore connected in the
// order of (lower rank, higher rank): both ranks of the first pair that is not connected are at
// that pair, so there is no deadlock.
void WireTransport::connect(std::span<const Rank> peers, Deadline deadline) {
  if (!link_) return;
  SC_ASSERT(std::is_sorted(peers.begin(), peers.end()));
  const auto begin = Deadline::Clock::now();
  for (const Rank peer : peers) {
    if (link_->connect(peer, epoch(), [&] { return deadline.has_passed(); })) continue;
    if (abort_reason()) return;  // the next call reports it
    throw_timeout(rank_, Deadline::Clock::now() - begin,
                  fmt::format("rank {} to connect", peer.value()));
  }
}

void WireTransport::synchronise(Deadline deadline) {
  meet(/*is_recovery=*/false, "connect", {}, deadline);
}

void WireTransport::send_key(Rank to, uint64_t epoch, std::string_view key) {
  FrameHead head;
  head.kind = FrameKind::kConnect;
  head.epoch = epoch;
  send_frame(to, head, key);
}

void WireTransport::on_recovered() {
  // These outlive the lock: destroying values can run user code and can take long.
  Exchange<FencedValue>::Forgotten forgotten;
  std::vector<Payloads> discarded;
  std::vector<Early> early_values;
  {
    const std::lock_guard lock(epoch_mutex_);
    forgotten = exchange_.forget();
    ++epoch_;
    for (const auto& peer : peers_) {
      if (peer) peer->inbox.layouts().expect_nothing(epoch_);
    }
    // Before the early values: values of an aborted epoch need not be delivered.
    for (auto& early : std::exchange(early_aborts_, {})) {
      if (early.epoch != epoch_) continue;
      if (early.is_spread) spread_ = epoch_ + 1;
      discarded.push_back(exchange_.abort(std::move(early.reason)));
    }
    early_values = std::exchange(early_, {});
    for (auto& early : early_values) {
      if (early.head.epoch != epoch_) continue;
      deliver(early.from, early.head, std::move(early.value), discarded.emplace_back());
    }
  }
  tell_abort();
}

std::size_t WireTransport::num_posted() const {
  std::size_t count = 0;
  for (const auto& peer : peers_) {
    if (peer) count += peer->inbox.layouts().num_posted();
  }
  return count;
}

}  // namespace stagecraft::detail
