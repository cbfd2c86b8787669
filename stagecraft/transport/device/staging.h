#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include "stagecraft/transport/device/side_streams.h"

namespace stagecraft::detail {

/// Tells when the devices have produced the tensors of a value. It is polled.
class Readiness {
 public:
  /// Called by one thread at a time. Throws what the device throws.
  bool is_ready() const;
  /// Polls until the tensors are ready (returns true) or `is_over` (returns false).
  template <typename IsOver>
  bool wait(const IsOver& is_over) const {
    for (int turn = 0; !is_ready(); ++turn) {
      if (is_over()) return false;
      pause(turn);
    }
    return true;
  }

 private:
  friend Readiness copy_to_host(std::vector<at::Tensor>& tensors, const std::vector<bool>& by_link,
                                std::vector<at::Tensor>& sources, SideStreams& streams);
  static void pause(int turn);

  std::vector<c10::Event> events_;
};

/// Replaces device tensors by copies in staging buffers, except those that go over the device link
/// (`by_link`). The copies run on side streams, after what is on the calling thread's current
/// streams; this call does not wait. All `tensors` may be read when the result is ready. Appends
/// the tensors that are copied to `sources`: their memory must live until then.
Readiness copy_to_host(std::vector<at::Tensor>& tensors, const std::vector<bool>& by_link,
                       std::vector<at::Tensor>& sources, SideStreams& streams);

}  // namespace stagecraft::detail
