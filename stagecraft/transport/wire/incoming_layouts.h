#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "stagecraft/transport/device/device_link.h"
#include "stagecraft/transport/wire/byte_transport.h"
#include "stagecraft/transport/wire/frame.h"
#include "stagecraft/transport/wire/value_codec.h"

namespace stagecraft::detail {

/// The layouts that a peer has sent, and the memory that is posted for values ahead of their frames
/// (frame.h). Thread-safe.
class IncomingLayouts {
 public:
  /// Posted memory for a value. No work fills the tensors that travel inside the frame.
  struct Posted {
    ArrivingTensors tensors;
    std::vector<WorkPtr> works;
  };
  struct Taken {
    std::shared_ptr<const ValueLayout> layout;
    Posted memory;
    /// A kRelease for memory that is no longer needed, because the edge now carries a different
    /// layout.
    std::optional<FrameHead> release;
  };

  /// `link` may be null.
  IncomingLayouts(ByteTransport& byte_transport, DeviceLink* link, Rank from);

  /// Called for every posted receive, before or after its frame.
  void expect(const TransferId& id, uint64_t epoch);
  /// The world has recovered to this epoch: no receive is posted.
  void expect_nothing(uint64_t epoch);

  /// Records the layout that a frame defines.
  void learn(uint32_t number, const Edge& edge, std::string_view layout);
  /// Memory for the value of a frame. Called in the order of the frames; receives of the device
  /// link are posted in the same order, on the current stream. MetadataError for a layout that is
  /// unknown or belongs to a different edge.
  Taken take(const FrameHead& head);
  /// The works to wait for after kReleased.
  std::vector<WorkPtr> take_back(const FrameHead& head);
  /// Forgets layouts below this number. Returns a kRelease for each that has posted memory; it is
  /// forgotten later.
  std::vector<FrameHead> forget_below(uint64_t number);

  /// The number of values with memory posted ahead of them.
  std::size_t num_posted() const;
  /// The number of frames that came before their receives.
  std::size_t num_early() const;

 private:
  struct Known {
    Edge edge;
    std::shared_ptr<const ValueLayout> layout;
    std::size_t num_messages = 0;    ///< tensors that travel as messages of their own
    std::size_t separate_bytes = 0;  ///< bytes outside the frame
    std::deque<Posted> posted;
    std::size_t asked_back = 0;
  };
  struct EdgeState {
    uint32_t layout = 0;
    uint64_t repeats = 0;                     ///< consecutive values with this layout
    std::unordered_set<TransferId> expected;  ///< posted receives without a frame yet
  };

  Posted post(uint32_t number, const Known& known);
  void post_on_link(const Known& known, uint64_t epoch, Posted& posted);
  std::optional<FrameHead> ask_back(uint32_t number, Known& known);

  ByteTransport& byte_transport_;
  DeviceLink* const link_;
  const Rank from_;
  const std::optional<c10::Device> home_;  ///< device on which tensors of the link arrive
  mutable std::mutex mutex_;
  std::map<uint32_t, Known> layouts_;
  std::map<Edge, EdgeState> edges_;
  uint64_t epoch_ = 0;
  /// Frames before their receives, with the epoch of each. None is of an epoch before epoch_.
  std::unordered_map<TransferId, uint64_t> early_;
};

}  // namespace stagecraft::detail
