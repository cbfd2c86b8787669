#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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
  /// Every rank's text, by rank. A collective, without the link's own `settle`.
  virtual std::vector<std::string> exchange(const std::string& mine, Deadline deadline) = 0;
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

  /// Adds the transfer to the device's current stream, without waiting. A transfer of an epoch
  /// other than the connection's is skipped, on both sides. The work is done when the stream has
  /// reached it, and keeps `bytes` until then.
  virtual WorkPtr send(Rank to, uint64_t epoch, const at::Tensor& bytes) = 0;
  virtual void receive(Rank from, uint64_t epoch, const at::Tensor& bytes) = 0;

  // Hooks of the world --------------------------------------------------------------------------

  /// Connects to the links of all other ranks. All ranks call it, on their own threads, after they
  /// joined and after every recovery. Transfers of earlier epochs end.
  virtual void connect(LinkedWorld& world, Deadline deadline) = 0;
  /// Waits until every posted receive has arrived on the device. PeerError if the world is aborted;
  /// TimeoutError. The rank's thread calls it before and after every collective.
  virtual void settle(LinkedWorld& world, Deadline deadline) = 0;
  /// Called every kTick by a separate thread: a thread may be blocked inside the link, so this
  /// thread must never wait for the link's users.
  virtual void on_tick(LinkedWorld& world) = 0;
  /// The world of that epoch is aborted. Does not wait: `on_tick` then ends all transfers.
  virtual void cancel(uint64_t epoch) = 0;
  /// Ends all transfers, complete or not. Nothing is sent until the next `connect`.
  virtual void abort() = 0;
  /// Ends the link. Transfers in progress get this much time to complete.
  virtual void close(std::chrono::nanoseconds limit) = 0;
};

}  // namespace stagecraft::detail
