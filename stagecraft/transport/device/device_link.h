#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"
#include "stagecraft/transport/core/abort_reason.h"
#include "stagecraft/transport/core/work.h"

namespace stagecraft::detail {

/// The world of a device link, as the link sees it.
class LinkedWorld {
 public:
  LinkedWorld() = default;
  virtual ~LinkedWorld() = default;
  LinkedWorld(const LinkedWorld&) = delete;
  LinkedWorld& operator=(const LinkedWorld&) = delete;

  virtual Rank rank() const = 0;
  /// The number of recoveries.
  virtual uint64_t epoch() const = 0;
  virtual void abort(AbortReason reason) = 0;
  virtual std::shared_ptr<const AbortReason> abort_reason() const = 0;
  /// A barrier, without the link's own `settle`.
  virtual void synchronise(Deadline deadline) = 0;
  /// Sends a key to the link of a rank: DeviceLink::accept is called there. A key that cannot be
  /// sent is dropped.
  virtual void send_key(Rank to, uint64_t epoch, std::string_view key) = 0;
};

/// A direct path for tensors of this rank's device, beside the host's: NCCL.
///
/// A link has no tags: the n-th send from a rank to a rank fills the n-th receive. Therefore the
/// sender sends in the order of its frames, and the receiver posts receives in the order in which
/// the frames arrive. Calls may come from any thread, except where noted; those for one direction
/// of a pair come from one thread at a time. `send` and `receive` do not throw because of a peer:
/// `on_tick` detects what fails, and aborts the world.
class DeviceLink {
 public:
  /// The period of `on_tick`: an abort ends transfers on the device within this time.
  static constexpr std::chrono::milliseconds kTick{50};

  DeviceLink() = default;
  virtual ~DeviceLink() = default;
  DeviceLink(const DeviceLink&) = delete;
  DeviceLink& operator=(const DeviceLink&) = delete;

  /// The device of this rank, with all tensors that are sent and received.
  virtual c10::Device device() const = 0;

  /// Connects to a rank, if that was not done in this epoch. Called before each value, by the
  /// thread that sends it. Waits for the rank, at most until `is_closed`, so the caller must not
  /// hold a lock. False if the epoch is over or `is_closed`. ArgumentError with the reason if the
  /// ranks cannot connect; TimeoutError. All messages name both ranks.
  virtual bool open(Rank to, uint64_t epoch, const std::function<bool()>& is_closed) = 0;
  /// Accepts the connection from a rank, with the key that its link has made. Does not wait.
  /// MetadataError for an invalid key.
  virtual void accept(Rank from, uint64_t epoch, std::string_view key) = 0;

  /// Connects both directions with a rank, which makes the same call. The direction in which the
  /// lower rank sends is connected first. Returns and throws as `open` does.
  virtual bool connect(Rank peer, uint64_t epoch, const std::function<bool()>& is_closed) = 0;

  /// Adds the transfer to the device's current stream, without waiting (`receive` may wait for the
  /// end of this rank's own part of connecting). A transfer of an epoch other than the link's, or
  /// of a pair that is not connected, is skipped. The work is done when the stream has reached it,
  /// and keeps `bytes` until then.
  virtual WorkPtr send(Rank to, uint64_t epoch, const at::Tensor& bytes) = 0;
  virtual void receive(Rank from, uint64_t epoch, const at::Tensor& bytes) = 0;

  // Hooks of the world --------------------------------------------------------------------------

  /// The world that the link belongs to. Called once, before everything else.
  virtual void attach(LinkedWorld& world) = 0;
  /// Begins an epoch, in which no ranks are connected yet. All ranks call it, on their own threads,
  /// after they joined and after every recovery. Transfers of earlier epochs end.
  virtual void begin_epoch(Deadline deadline) = 0;
  /// Waits until every posted receive has arrived on the device. PeerError if the world is aborted;
  /// TimeoutError. The rank's thread calls it before and after every collective.
  virtual void settle(Deadline deadline) = 0;
  /// Called every kTick, on a thread of its own. Other threads may be blocked inside the link until
  /// this call ends the transfers, so it must never wait for them.
  virtual void on_tick() = 0;
  /// Records that the world was aborted in that epoch. Does not wait: the next `on_tick` ends all
  /// transfers.
  virtual void cancel(uint64_t epoch) = 0;
  /// Ends all transfers, complete or not. Nothing is sent until the next epoch.
  virtual void abort() = 0;
  /// Ends the link. Transfers in progress get the time `limit` to complete.
  virtual void close(std::chrono::nanoseconds limit) = 0;
};

}  // namespace stagecraft::detail
