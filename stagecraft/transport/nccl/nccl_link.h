#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "stagecraft/transport/device/device_link.h"
#include "stagecraft/transport/nccl/nccl_pairs.h"

namespace stagecraft::detail {

/// A device link over NCCL. A pair of ranks gets its communicator when it first sends. When the
/// world is aborted, all communicators are aborted within a tick.
///
/// A value is delivered while NCCL still transfers it: the receiver's stream waits, its thread does
/// not. A loss is therefore detected later. `settle` detects it, so no collective returns on a rank
/// that has lost a value.
class NcclLink final : public DeviceLink {
 public:
  /// An NCCL error may be the consequence of an abort on a different rank, whose reason is about to
  /// arrive. After this time it is reported as a failure of its own.
  static constexpr std::chrono::milliseconds kGrace{500};

  /// `connect_limit`: how long a rank waits for a peer to connect.
  NcclLink(std::shared_ptr<const NcclLibrary> library, Rank rank, int32_t ranks, c10::Device device,
           std::chrono::nanoseconds connect_limit)
      : pairs_(std::move(library), rank, ranks, device, connect_limit) {}

  c10::Device device() const override { return pairs_.device(); }
  bool open(Rank to, uint64_t epoch, const std::function<bool()>& is_closed) override;
  bool connect(Rank peer, uint64_t epoch, const std::function<bool()>& is_closed) override;
  void accept(Rank from, uint64_t epoch, std::string_view key) override {
    pairs_.accept(from, epoch, key);
  }
  WorkPtr send(Rank to, uint64_t epoch, const at::Tensor& bytes) override {
    return pairs_.send(to, epoch, bytes);
  }
  void receive(Rank from, uint64_t epoch, const at::Tensor& bytes) override {
    pairs_.receive(from, epoch, bytes);
  }

  void attach(LinkedWorld& world) override { world_ = &world; }
  void begin_epoch(Deadline deadline) override;
  void settle(Deadline deadline) override;
  void on_tick() override;
  void cancel(uint64_t epoch) override { pairs_.cancel(epoch); }
  void abort() override { pairs_.abort(); }
  void close(std::chrono::nanoseconds limit) override { pairs_.close(limit); }

 private:
  void fail(AbortReason reason);

  LinkedWorld* world_ = nullptr;
  NcclPairs pairs_;
  std::mutex ending_;  ///< held while communicators are ended
  std::optional<Deadline::Clock::time_point> failing_since_;  ///< used by on_tick
};

}  // namespace stagecraft::detail
