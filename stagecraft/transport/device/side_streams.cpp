#include "stagecraft/transport/device/side_streams.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace stagecraft::detail {

bool has_streams(c10::Device device) {
  return !device.is_cpu() && !device.is_meta() && c10::impl::hasDeviceGuardImpl(device.type());
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

c10::Stream SideStreams::of(c10::Device device) {
  const std::lock_guard lock(mutex_);
  for (const auto& stream : streams_) {
    if (stream.device() == device) return stream;
  }
  // Streams of high priority are a pool of their own, which programs rarely use.
  streams_.push_back(
      c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, true));
  return streams_.back();
}

SideStreams::Guard::Guard(SideStreams& streams, c10::Device device) {
  if (has_streams(device)) guard_.reset_stream(streams.of(device));
}

}  // namespace stagecraft::detail
