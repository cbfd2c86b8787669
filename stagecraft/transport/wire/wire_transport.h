#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/transport/core/exchange.h"
#include "stagecraft/transport/device/device_link.h"
#include "stagecraft/transport/join_options.h"
#include "stagecraft/transport/transport.h"
#include "stagecraft/transport/wire/byte_transport.h"
#include "stagecraft/transport/wire/inbox.h"
#include "stagecraft/transport/wire/meeting_point.h"
#include "stagecraft/transport/wire/outbox.h"
#include "stagecraft/transport/wire/peer_state.h"
#include "stagecraft/transport/wire/watchdog.h"

namespace stagecraft::detail {

using WireOptions = ProcessTransportOptions;

/// A rank's transport in a world of processes, over any ByteTransport.
///
/// The mailboxes of Exchange match values. The inbox of each peer puts arriving values there. Two
/// ranks that abort the world at the same moment may each see their own reason.
class WireTransport final : public Transport, private InboxListener, private LinkedWorld {
 public:
  /// The period of the watchdog, which sends heartbeats.
  static constexpr std::chrono::milliseconds kTick{200};

  /// With a link, call begin_link before anything else.
  WireTransport(std::unique_ptr<ByteTransport> byte_transport, const WireOptions& options,
                std::unique_ptr<DeviceLink> link = nullptr);
  ~WireTransport() override;

  Rank rank() const override { return rank_; }
  int32_t num_ranks() const override { return exchange_.num_ranks(); }

  PendingPtr post_send(Rank to, const TransferId& id, c10::IValue value) override;
  PendingPtr post_receive(Rank from, const TransferId& id) override;
  void wait_send(const PendingPtr& send, Deadline deadline) override;
  Received wait_receive(const PendingPtr& receive, Deadline deadline) override;

  void barrier(Deadline deadline) override;
  c10::IValue broadcast(c10::IValue value, Rank root, Deadline deadline) override;
  at::Tensor all_reduce(const at::Tensor& tensor, Deadline deadline) override;
  std::vector<c10::IValue> all_gather(c10::IValue value, Deadline deadline) override;

  void abort(AbortReason reason) override;
  std::shared_ptr<const AbortReason> abort_reason() const override { return exchange_.reason(); }
  void recover(Deadline deadline) override;
  void connect(std::span<const Rank> peers, Deadline deadline) override;
  bool waits_on_device() const override { return link_ != nullptr; }

  void publish(std::function<RankProgress()> tell) override;
  std::vector<HeardProgress> progress() const override;

  /// Calls DeviceLink::begin_epoch, if there is a link. Called by all ranks. Throws as a barrier
  /// does.
  void begin_link(Deadline deadline);

  /// The number of recoveries.
  uint64_t epoch() const override { return epoch_; }
  /// The number of values with memory posted ahead of them; for tests.
  std::size_t num_posted() const;

 private:
  /// Both ends of the connection with one peer.
  struct Peer {
    Peer(Rank rank, WireTransport& owner);

    Outbox outbox;
    Inbox inbox;
    PeerState state;
    int failed_ticks = 0;  ///< used by the watchdog

    mutable std::mutex progress_mutex;
    std::optional<RankProgress> progress;  ///< from its last heartbeat
    Deadline::Clock::time_point said_at;
  };
  struct Early {
    Rank from;
    FrameHead head;
    FencedValue value;
  };
  struct EarlyAbort {
    uint64_t epoch;
    AbortReason reason;
    bool is_spread;  ///< the sender has notified all ranks
  };
  using Met = std::shared_ptr<const MeetingPoint::Met>;
  using Payloads = Exchange<FencedValue>::Payloads;

  void on_value(Rank from, const FrameHead& head, FencedValue value) override;
  void on_damaged(Rank from, const FrameHead& head, const std::string& what) override;
  void on_refused(Rank from, const FrameHead& head, const std::string& what) override;
  void on_control(Rank from, const FrameHead& head, std::string_view body) override;
  void on_answer(Rank to, const FrameHead& head) override;
  void on_lost(Rank from, const std::string& why) override;
  void on_closed(Rank from) override;
  void on_abort(const FrameHead& head, std::string_view body);
  /// This rank could not send a value. Called on a thread of the outbox.
  void on_unsent(const FrameHead& head, const std::string& failure);
  /// Aborts the world in that epoch: now, after the recovery that begins it, or, if it is over, not
  /// at all.
  void abort_epoch(uint64_t epoch, AbortReason reason);
  /// Called by the communication library.
  void on_process_ended(Rank other);
  void on_recovered();
  void on_progress(Rank from, std::string_view body);
  void on_tick();
  void synchronise(Deadline deadline) override;
  void send_key(Rank to, uint64_t epoch, std::string_view key) override;

  Peer& peer(Rank rank) { return *peers_[rank]; }
  const WorldState& world() const { return exchange_.world(); }
  void send_frame(Rank to, const FrameHead& head, std::string_view body);
  /// If this aborts the world, `discarded` becomes what the abort releases. REQUIRES epoch_mutex_.
  void deliver(Rank from, const FrameHead& head, FencedValue&& value, Payloads& discarded);
  std::string describe_unsent(const TransferId& id, const std::string& failure) const;
  void wake();
  void start_poll_watchdog();
  void say_goodbye();
  /// Sends the abort reason to all peers, once for each epoch.
  void spread_abort();
  /// Cancels transfers of the device link in this epoch. REQUIRES epoch_mutex_.
  void cancel_link();
  /// Waits until everything has arrived on the device, before and after a collective.
  void settle(Deadline deadline);
  /// If the world is aborted: notifies peers and waiting threads.
  void tell_abort();
  [[noreturn]] void throw_gone(Rank other, const std::string& what);
  at::Tensor reduce_in_parts(const at::Tensor& flat, uint64_t meeting, Deadline deadline);
  Met meet(bool is_recovery, const std::string& call, const std::string& bytes, Deadline deadline);

  const std::unique_ptr<ByteTransport> byte_transport_;
  const std::unique_ptr<DeviceLink> link_;  ///< may be null
  const Rank rank_;
  const WireOptions options_;
  Exchange<FencedValue> exchange_;
  WaitQueue sends_;  ///< threads that wait for a send

  std::mutex epoch_mutex_;  ///< held while the exchange is changed
  std::atomic<uint64_t> epoch_{0};
  std::atomic<uint64_t> spread_{0};       ///< 1 + the epoch whose abort was sent to all peers
  std::vector<Early> early_;              ///< values from peers that have recovered earlier
  std::vector<EarlyAbort> early_aborts_;  ///< of epochs that this rank has not reached

  MeetingPoint meetings_;
  IndexedVector<Rank, std::unique_ptr<Peer>> peers_;  ///< null for this rank
  std::atomic<bool> is_leaving_{false};
  Deadline::Clock::time_point last_tick_;  ///< used by the watchdog
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<Watchdog> link_watchdog_;
  std::unique_ptr<Watchdog> poll_watchdog_;  ///< null until a wait has ticks
};

}  // namespace stagecraft::detail
