#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "stagecraft/transport/device/device_link.h"
#include "stagecraft/transport/nccl/nccl_pairs.h"

namespace stagecraft::detail {

/// A device link over NCCL. When the world is aborted, all communicators are aborted within a tick;
/// `connect` creates new ones.
///
/// A value is delivered while NCCL still transfers it: the receiver's stream waits, its thread does
/// not. A loss is therefore detected later. `settle` detects it, so no collective returns on a rank
/// that has lost a value.
class NcclLink final : public DeviceLink {
 public:
  /// An NCCL error may be the consequence of an abort on a different rank, whose reason is about to
  /// arrive. After this time it is reported as a failure of its own.
  static constexpr std::chrono::milliseconds kGrace{500};

  NcclLink(std::shared_ptr<const NcclLibrary> library, Rank rank, int32_t ranks, c10::Device device)
      : pairs_(std::move(library), rank, ranks, device) {}

  c10::Device device() const override { return pairs_.device(); }
  WorkPtr send(Rank to, uint64_t epoch, const at::Tensor& bytes) override {
    return pairs_.send(to, epoch, bytes);
  }
  void receive(Rank from, uint64_t epoch, const at::Tensor& bytes) override {
    pairs_.receive(from, epoch, bytes);
  }

  void connect(LinkedWorld& world, Deadline deadline) override;
  void settle(LinkedWorld& world, Deadline deadline) override;
  void on_tick(LinkedWorld& world) override;
  void cancel(uint64_t epoch) override { pairs_.cancel(epoch); }
  void abort() override { pairs_.abort(); }
  void close(std::chrono::nanoseconds limit) override { pairs_.close(limit); }

 private:
  void fail(LinkedWorld& world, AbortReason reason);

  NcclPairs pairs_;
  std::mutex connecting_;  ///< held while communicators are created or ended
  std::optional<Deadline::Clock::time_point> failing_since_;  ///< used by on_tick
};

}  // namespace stagecraft::detail
