#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "stagecraft/base/index.h"
#include "stagecraft/transport/wire/engine.h"

namespace stagecraft::detail {

/// What carries a device's tensors from rank to rank past the host, beside an engine: NCCL.
///
/// It has no tags: of what a rank sends to another, the n-th send fills the n-th receive. So the
/// sender sends in the order of its frames, and the receiver posts in the order in which they came.
/// Calls may come from any thread, those for one direction of a pair from one at a time. Neither
/// throws because of the other rank: what fails is found elsewhere, and ends the world.
class DeviceLink {
 public:
  DeviceLink() = default;
  virtual ~DeviceLink() = default;
  DeviceLink(const DeviceLink&) = delete;
  DeviceLink& operator=(const DeviceLink&) = delete;

  /// Of this rank; what it sends and receives lies there.
  virtual c10::Device device() const = 0;

  /// On the device's current stream, after what is there; does not wait. `epoch`: how often the
  /// world had recovered; what is of another one than the connection is left out, on both sides.
  /// The work is done when the stream has got so far, and keeps `bytes` until then.
  virtual Engine::WorkPtr send(Rank to, uint64_t epoch, const at::Tensor& bytes) = 0;
  virtual void receive(Rank from, uint64_t epoch, const at::Tensor& bytes) = 0;

  /// The world of that epoch is aborted: what is under way shall end, also inside a call. Does not
  /// wait.
  virtual void end(uint64_t epoch) = 0;
};

}  // namespace stagecraft::detail
