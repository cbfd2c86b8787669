// How a wire transport detects failures, and what it does then.

#include <chrono>
#include <string>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/transport/core/exchange_errors.h"
#include "stagecraft/transport/wire/bytes.h"
#include "stagecraft/transport/wire/peer_state.h"
#include "stagecraft/transport/wire/progress_codec.h"
#include "stagecraft/transport/wire/wire_transport.h"

namespace stagecraft::detail {
namespace {

// Grace period for the last messages of a process that has ended: they may carry the cause. It is
// over after kQuietLooks polls in a row without a new message. On a busy machine each poll takes
// longer, as reading does.
constexpr auto kLastWords = std::chrono::milliseconds(200);
constexpr auto kLook = std::chrono::milliseconds(1);
constexpr int kQuietLooks = 20;

}  // namespace

void WireTransport::abort(AbortReason reason) {
  exchange_.abort(std::move(reason));
  spread_abort();
  wake();
}

void WireTransport::spread_abort() {
  FrameHead head;
  head.kind = FrameKind::kAbort;
  ByteWriter body;
  {
    const std::lock_guard lock(epoch_mutex_);
    const auto reason = exchange_.reason();
    if (!reason) return;
    cancel_link();
    // Several threads may detect the same abort. Only the first of them sends it.
    if (spread_.exchange(epoch_ + 1) == epoch_ + 1) return;
    head.epoch = epoch_;
    body.put(reason->rank.value());
    body.put_text(reason->message);
    body.put(static_cast<uint8_t>(reason->is_lost ? 1 : 0));
  }
  for (Rank other(0); other.value() < num_ranks(); ++other) {
    if (other != rank_ && !world().has_left(other)) send_frame(other, head, body.bytes());
  }
}

void WireTransport::tell_abort() {
  if (!world().is_aborted()) return;
  spread_abort();
  wake();
}

void WireTransport::on_abort(const FrameHead& head, std::string_view body) {
  ByteReader in(body);
  const Rank origin(in.get<int32_t>());
  exchange_.require_rank(origin, "abort");
  AbortReason reason{origin, std::string(in.get_text())};
  reason.is_lost = in.get<uint8_t>() != 0;
  Payloads discarded;  // outlives the lock
  const std::lock_guard lock(epoch_mutex_);
  if (head.epoch > epoch_) {
    // The sender has recovered before this rank. The reason must wait until this rank has, too: the
    // recovery would otherwise forget it.
    early_aborts_.push_back({head.epoch, std::move(reason), /*is_spread=*/true});
    return;
  }
  if (head.epoch != epoch_) return;
  // The sender has notified all ranks.
  spread_ = epoch_ + 1;
  discarded = exchange_.abort(std::move(reason));
  cancel_link();
}

void WireTransport::cancel_link() {
  if (link_) link_->cancel(epoch_);
}

void WireTransport::on_control(Rank from, const FrameHead& head, std::string_view body) {
  switch (head.kind) {
    case FrameKind::kAbort:
      on_abort(head, body);
      return wake();
    case FrameKind::kGoodbye: {
      exchange_.leave(from);
      FrameHead seen;
      seen.kind = FrameKind::kSeen;
      // The peer may close the connection after this frame. All earlier frames of the peer have
      // been read, because frames are read in order.
      send_frame(from, seen, {});
      return wake();
    }
    case FrameKind::kSeen:
      peer(from).state.move_to(PeerState::State::kReleased);
      return wake();
    case FrameKind::kRelease:
      try {
        peer(from).outbox.release(head);
      } catch (const ConnectionLost&) {
        // The inbox detects a lost connection, too.
      }
      return;
    case FrameKind::kCome:
    case FrameKind::kWithdraw:
    case FrameKind::kMet:
    case FrameKind::kWithdrawn:
      return meetings_.on_frame(from, head, body);
    case FrameKind::kConnect:
      require<MetadataError>(link_ != nullptr,
                             "a frame connects a device link, which is not available");
      return link_->accept(from, head.epoch, body);
    case FrameKind::kHeartbeat:
      peer(from).outbox.on_read(head.step);
      return on_progress(from, body);
    case FrameKind::kData:
    case FrameKind::kReleased:
      return;
  }
}

void WireTransport::on_answer(Rank to, const FrameHead& head) {
  send_frame(to, head, {});
}

void WireTransport::on_lost(Rank from, const std::string& why) {
  if (!peer(from).state.move_to(PeerState::State::kLost)) return;
  // First: the library gives up transfers with the peer, so nothing that follows waits for them.
  byte_transport_->forget(from);
  if (is_leaving_) {
    peer(from).outbox.close();
    return on_closed(from);
  }
  // The peer is notified, too: it may be alive and only have sent an invalid message. The watchdog
  // closes the outbox.
  // The abort comes before `leave`: a wait that `leave` ends would abort the world with its own
  // reason, and the first reason counts.
  abort({from, fmt::format("rank {}: {}", from.value(), why), nullptr, /*is_lost=*/true});
  exchange_.leave(from);
  on_closed(from);
}

void WireTransport::on_process_ended(Rank other) {
  const auto is_told = [&] { return world().has_left(other) || world().is_aborted(); };
  const auto last = Deadline::after(kLastWords);
  auto heard = peer(other).inbox.last_heard();
  for (int quiet = 0; quiet < kQuietLooks && !is_told() && !last.has_passed(); ++quiet) {
    auto lock = sends_.lock();
    sends_.wait(lock, Deadline::after(kLook), is_told);
    lock.unlock();
    const auto now = peer(other).inbox.last_heard();
    // Messages of the process can still arrive after its end, and several may be on their way.
    if (std::exchange(heard, now) != now) quiet = 0;
  }
  if (!world().has_left(other)) on_lost(other, "its process has ended");
}

void WireTransport::on_closed(Rank from) {
  // Posted sends may still complete, so the watchdog closes the outbox later.
  peer(from).inbox.stop();
  peer(from).state.move_to(PeerState::State::kClosed);
  wake();
}

void WireTransport::send_frame(Rank to, const FrameHead& head, std::string_view body) {
  try {
    peer(to).outbox.send(head, body);
  } catch (const ConnectionLost&) {
    // The inbox or the next tick detects a lost connection, too.
  }
}

void WireTransport::throw_gone(Rank other, const std::string& what) {
  // The peer's last frames may be unread, and may say that it left.
  auto lock = sends_.lock();
  sends_.wait(lock, Deadline::after(kTick), [&] { return world().has_left(other); });
  lock.unlock();
  if (!world().has_left(other)) on_lost(other, kPeerEnded);
  world().throw_if_aborted();
  throw_has_left(other, rank_, what);
}

void WireTransport::wake() {
  for (const auto& peer : peers_) {
    if (peer) peer->inbox.cancel_poll();
  }
  meetings_.wake();
  auto lock = sends_.lock();
  sends_.unlock_and_wake(lock);
}

void WireTransport::on_tick() {
  const auto now = Deadline::Clock::now();
  // Whether this process itself was stopped. If so, messages that arrived in the meantime are read
  // before silence is judged.
  const bool was_away = last_tick_ != Deadline::Clock::time_point() && now - last_tick_ > 5 * kTick;
  last_tick_ = now;
  // Once for all peers: asking runs the function that the program has published.
  const std::string progress = encode_progress(exchange_.progress_source(rank_).ask());
  for (Rank other(0); other.value() < num_ranks(); ++other) {
    if (other == rank_) continue;
    // A rank that has left reads nothing. Its last frames were sent two ticks ago.
    const bool has_left = world().has_left(other);
    if ((peer(other).state.has_ended() || has_left) && ++peer(other).failed_ticks > 1) {
      peer(other).outbox.close();
    }
    if (has_left) continue;
    // A thread that reads inline may have a deadline.
    peer(other).inbox.cancel_poll();
    try {
      peer(other).outbox.tick(epoch_, progress, peer(other).inbox.num_read());
    } catch (const ConnectionLost&) {
      // The inbox detects a lost connection, too, but may miss it inside a message.
      if (++peer(other).failed_ticks > 1 && !world().has_left(other)) on_lost(other, kPeerEnded);
      continue;
    }
    if (was_away) peer(other).inbox.touch();
    const auto silence = now - peer(other).inbox.last_heard();
    if (options_.max_silence.count() > 0 && silence > options_.max_silence &&
        !world().is_aborted()) {
      abort({other,
             fmt::format("rank {}: no heartbeat for {}", other.value(), describe_wait(silence)),
             nullptr, /*is_lost=*/true});
    }
  }
}

// Progress -------------------------------------------------------------------------------------

void WireTransport::publish(std::function<RankProgress()> tell) {
  exchange_.progress_source(rank_).set(std::move(tell));
}

void WireTransport::on_progress(Rank from, std::string_view body) {
  auto progress = decode_progress(body);
  if (!progress) return;
  Peer& said = peer(from);
  const std::lock_guard lock(said.progress_mutex);
  said.progress = std::move(progress);
  said.said_at = Deadline::Clock::now();
}

std::vector<HeardProgress> WireTransport::progress() const {
  std::vector<HeardProgress> heard;
  for (Rank other(0); other.value() < num_ranks(); ++other) {
    if (other == rank_) {
      heard.push_back({.progress = exchange_.progress_source(rank_).ask()});
      continue;
    }
    const Peer& known = *peers_[other];
    const std::lock_guard lock(known.progress_mutex);
    heard.push_back({.progress = known.progress,
                     .age = std::chrono::duration_cast<std::chrono::milliseconds>(
                         Deadline::Clock::now() - known.said_at),
                     .is_lost = known.state.is_lost()});
  }
  return heard;
}

}  // namespace stagecraft::detail
