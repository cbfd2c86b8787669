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
#include "stagecraft/transport/wire/watchdog.h"

namespace stagecraft::detail {

using WireOptions = ProcessTransportOptions;

/// A rank's end of a world of processes, over any engine.
///
/// Values are matched by the mailboxes of Exchange: an inbox for each other rank puts there what
/// comes. Two ranks that abort the world at the same moment may each see their own reason.
class WireTransport final : public Transport, private InboxListener, private LinkedWorld {
 public:
  /// How often the watchdog looks and says something.
  static constexpr std::chrono::milliseconds kTick{200};

  /// With a link, call connect_link before anything else.
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

  void publish(std::function<RankProgress()> tell) override;
  std::vector<HeardProgress> progress() const override;

  /// Connects the device link with those of all ranks, which do the same. Throws as
  /// DeviceLink::connect does, and PeerError with what a different rank threw there.
  void connect_link(Deadline deadline);

  /// The number of recoveries.
  uint64_t epoch() const override { return epoch_; }
  /// How many values have memory posted ahead of them; for tests.
  std::size_t num_posted() const;

 private:
  /// The two ends of the connection with one other rank.
  struct Peer {
    Peer(Rank rank, WireTransport& owner);

    Outbox outbox;
    Inbox inbox;
    std::atomic<bool> is_lost{false};
    std::atomic<bool> is_closed{false};  ///< nothing will come from there any more
    std::atomic<bool> has_seen_goodbye{false};
    int failed_ticks = 0;  ///< the watchdog's

    mutable std::mutex progress_mutex;
    std::optional<RankProgress> progress;  ///< as it last said
    Deadline::Clock::time_point said_at;
  };
  struct Early {
    Rank from;
    FrameHead head;
    FencedValue value;
  };
  using Met = std::shared_ptr<const MeetingPoint::Met>;

  void on_value(Rank from, const FrameHead& head, FencedValue value) override;
  void on_damaged(Rank from, const FrameHead& head, const std::string& what) override;
  void on_refused(Rank from, const FrameHead& head, const std::string& what) override;
  void on_control(Rank from, const FrameHead& head, std::string_view body) override;
  void on_answer(Rank to, const FrameHead& head) override;
  void on_lost(Rank from, const std::string& why) override;
  void on_closed(Rank from) override;
  void on_abort(const FrameHead& head, std::string_view body);
  /// This rank's own failure, on a thread of the outbox's.
  void on_unsent(const FrameHead& head, const std::string& failure);
  /// Told by the engine.
  void on_process_ended(Rank other);
  void on_recovered();
  void on_progress(Rank from, std::string_view body);
  void on_tick();
  std::vector<std::string> exchange(const std::string& mine, Deadline deadline) override;

  Peer& peer(Rank rank) { return *peers_[static_cast<std::size_t>(rank.value())]; }
  const WorldState& world() const { return exchange_.world(); }
  void send_frame(Rank to, const FrameHead& head, std::string_view body);
  void deliver(Rank from, const FrameHead& head, FencedValue value);
  std::string describe_unsent(const TransferId& id, const std::string& failure) const;
  void wake();
  void say_goodbye();
  /// Tells the others why this rank has aborted, once.
  void spread_abort();
  /// Cancels transfers of the device link in this epoch. REQUIRES epoch_mutex_.
  void cancel_link();
  /// Waits until everything has arrived on the device, before and after a collective.
  void settle(Deadline deadline);
  /// If the world is aborted: tells the others, and whoever waits here.
  void tell_abort();
  [[noreturn]] void throw_gone(Rank other, const std::string& what);
  at::Tensor reduce_in_parts(const at::Tensor& flat, uint64_t meeting, Deadline deadline);
  Met meet(bool is_recovery, const std::string& call, const std::string& bytes, Deadline deadline);

  const std::unique_ptr<ByteTransport> byte_transport_;
  const std::unique_ptr<DeviceLink> link_;  ///< may be null
  const Rank rank_;
  const WireOptions options_;
  Exchange<FencedValue> exchange_;
  WaitQueue sends_;  ///< where this rank waits for a send

  std::mutex epoch_mutex_;  ///< held while something is given to the exchange
  std::atomic<uint64_t> epoch_{0};
  std::atomic<uint64_t> spread_{0};  ///< abort of this epoch, counted from 1
  std::vector<Early> early_;         ///< from ranks that have recovered before this one
  std::vector<std::pair<uint64_t, AbortReason>> early_aborts_;

  MeetingPoint meetings_;
  std::vector<std::unique_ptr<Peer>> peers_;  ///< by rank; null for this one
  std::atomic<bool> is_leaving_{false};
  Deadline::Clock::time_point last_tick_;  ///< of the watchdog's
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<Watchdog> link_watchdog_;
};

}  // namespace stagecraft::detail
