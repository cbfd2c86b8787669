#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "stagecraft/transport/nccl/nccl_link.h"
#include "stagecraft/transport/transport.h"
#include "stagecraft/transport/wire/engine.h"
#include "stagecraft/transport/wire/watchdog.h"
#include "stagecraft/transport/wire/wire_transport.h"

namespace stagecraft::detail {

/// A rank's end of a world whose values travel over an engine, and their tensors of one device over
/// NCCL. When the world is aborted, so are all communicators, within a tick; `recover` makes new
/// ones.
///
/// A value is handed over while NCCL still brings it: the receiver's stream waits, its thread does
/// not. What NCCL loses is found out behind that, so collectives begin and end with a look whether
/// all that was received has come, and throw where it has not.
class NcclTransport final : public Transport {
 public:
  /// How often it looks whether the world is aborted or NCCL has failed.
  static constexpr std::chrono::milliseconds kTick{50};
  /// How long a failure of NCCL may be another one's that is about to be told.
  static constexpr std::chrono::milliseconds kGrace{500};

  /// Connects with the other ranks, which do the same: throws as NcclLink::connect does, and
  /// PeerError with what another rank threw there.
  NcclTransport(std::unique_ptr<Engine> engine, std::shared_ptr<const NcclLibrary> library,
                c10::Device device, const WireOptions& options, Deadline deadline);
  ~NcclTransport() override;

  Rank rank() const override { return wire_->rank(); }
  int32_t num_ranks() const override { return wire_->num_ranks(); }

  PendingPtr post_send(Rank to, const TransferId& id, c10::IValue value) override {
    return wire_->post_send(to, id, std::move(value));
  }
  PendingPtr post_receive(Rank from, const TransferId& id) override {
    return wire_->post_receive(from, id);
  }
  void wait_send(const PendingPtr& send, Deadline deadline) override {
    wire_->wait_send(send, deadline);
  }
  Received wait_receive(const PendingPtr& receive, Deadline deadline) override {
    return wire_->wait_receive(receive, deadline);
  }

  void barrier(Deadline deadline) override {
    settle(deadline);
    wire_->barrier(deadline);
  }
  c10::IValue broadcast(c10::IValue value, Rank root, Deadline deadline) override {
    settle(deadline);
    auto result = wire_->broadcast(std::move(value), root, deadline);
    settle(deadline);
    return result;
  }
  at::Tensor all_reduce(const at::Tensor& tensor, Deadline deadline) override {
    settle(deadline);
    auto sum = wire_->all_reduce(tensor, deadline);
    settle(deadline);
    return sum;
  }
  std::vector<c10::IValue> all_gather(c10::IValue value, Deadline deadline) override {
    settle(deadline);
    auto all = wire_->all_gather(std::move(value), deadline);
    settle(deadline);
    return all;
  }

  void abort(AbortReason reason) override { wire_->abort(std::move(reason)); }
  std::shared_ptr<const AbortReason> abort_reason() const override { return wire_->abort_reason(); }
  void recover(Deadline deadline) override;

  void publish(std::function<RankProgress()> tell) override { wire_->publish(std::move(tell)); }
  std::vector<HeardProgress> progress() const override { return wire_->progress(); }

 private:
  void connect(Deadline deadline);
  /// Until all that was received has come. PeerError if the world is aborted, TimeoutError.
  void settle(Deadline deadline);
  void on_tick();
  void fail(AbortReason reason);

  const WireOptions options_;
  std::shared_ptr<NcclLink> link_;
  std::unique_ptr<WireTransport> wire_;
  std::mutex connecting_;  ///< held while communicators are made, or ended
  std::optional<Deadline::Clock::time_point> failing_since_;  ///< the watchdog's
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace stagecraft::detail
