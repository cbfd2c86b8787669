#pragma once

#include <mutex>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

namespace stagecraft::detail {

/// Whether work on such a device is ordered by streams. False for the CPU, and for meta tensors,
/// which have no data.
bool has_streams(c10::Device device);
c10::Stream current_stream(c10::Device device);

/// A stream for each device, in addition to the program's streams; created when first used.
/// Thread-safe.
class SideStreams {
 public:
  /// Makes the side stream of a device current on the calling thread while the guard lives. No
  /// effect for a device without streams.
  class Guard {
   public:
    Guard(SideStreams& streams, c10::Device device);

   private:
    c10::OptionalStreamGuard guard_;
  };

  c10::Stream of(c10::Device device);

 private:
  std::mutex mutex_;
  std::vector<c10::Stream> streams_;
};

}  // namespace stagecraft::detail
