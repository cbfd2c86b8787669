#pragma once

#include <vector>

#include <c10/core/Event.h>

#include "stagecraft/transport/wire/side_streams.h"
#include "stagecraft/transport/wire/value_codec.h"

namespace stagecraft::detail {

/// What a value that is sent waits for on its devices: whoever waits asks.
class Readiness {
 public:
  /// Asked by one thread at a time. Throws what the device throws.
  bool is_ready() const;
  /// Until it is ready (true) or `is_over`.
  template <typename IsOver>
  bool wait(const IsOver& is_over) const {
    for (int turn = 0; !is_ready(); ++turn) {
      if (is_over()) return false;
      pause(turn);
    }
    return true;
  }

 private:
  friend Readiness stage(EncodedValue& value, SideStreams& streams);
  static void pause(int turn);

  std::vector<c10::Event> events_;
};

/// Whether something of it is on a device.
bool is_on_device(const EncodedValue& value);

/// Brings the tensors of the value that do not go over the link from their devices to pinned memory
/// of the CPU, on side streams behind the calling thread's current ones, and waits for nothing. The
/// value may be read when it is ready: copies, and what the link is to carry, are there.
Readiness stage(EncodedValue& value, SideStreams& streams);

/// Memory of the CPU that copies from and to the device go through without waiting; torch keeps it
/// for the next time.
at::Tensor empty_pinned(std::size_t bytes);

}  // namespace stagecraft::detail
