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

/// The layouts that one rank has sent, and the memory that is posted for values of them ahead of
/// their frames (frame.h). Thread-safe.
class IncomingLayouts {
 public:
  /// Memory for a value, posted. The tensors that travel inside the frame are not filled by works.
  struct Posted {
    ArrivingTensors tensors;
    std::vector<WorkPtr> works;
  };
  struct Taken {
    std::shared_ptr<const ValueLayout> layout;
    Posted memory;
    /// What is to be asked back, since its edge carries something else now: a kRelease.
    std::optional<FrameHead> release;
  };

  /// `link` may be null.
  IncomingLayouts(ByteTransport& byte_transport, DeviceLink* link, Rank from);

  /// A receive was posted; every one is told of, in whatever order with the frames.
  void expect(const TransferId& id, uint64_t epoch);
  /// The world has recovered, for the so many-th time: no receive is posted any more.
  void expect_nothing(uint64_t epoch);

  /// Those of a frame with a layout in it.
  void learn(uint32_t number, const Edge& edge, std::string_view layout);
  /// For the value of a frame; frames come in order, and what goes over the device link is posted
  /// in that order too, on the current stream. MetadataError for a layout that is not known or
  /// another edge's.
  Taken take(const FrameHead& head);
  /// For kReleased: the works to wait for.
  std::vector<WorkPtr> take_back(const FrameHead& head);
  /// A kRelease for each layout below this number for which memory is posted; the others are
  /// forgotten.
  std::vector<FrameHead> forget_below(uint64_t number);

  /// How many values have memory posted ahead of them.
  std::size_t num_posted() const;

 private:
  struct Known {
    Edge edge;
    std::shared_ptr<const ValueLayout> layout;
    std::size_t num_messages = 0;    ///< tensors that travel alone
    std::size_t separate_bytes = 0;  ///< all that is not in the frame
    std::deque<Posted> posted;
    std::size_t asked_back = 0;
  };
  struct EdgeState {
    uint32_t layout = 0;
    uint64_t repeats = 0;                     ///< how many of this layout came one after another
    std::unordered_set<TransferId> expected;  ///< posted, and their frames have not come
  };

  Posted post(uint32_t number, const Known& known);
  void post_on_link(const Known& known, uint64_t epoch, Posted& posted);
  std::optional<FrameHead> ask_back(uint32_t number, Known& known);

  ByteTransport& byte_transport_;
  DeviceLink* const link_;
  const Rank from_;
  const std::optional<c10::Device> home_;  ///< where tensors of the link's kind of device arrive
  mutable std::mutex mutex_;
  std::map<uint32_t, Known> layouts_;
  std::map<Edge, EdgeState> edges_;
  std::unordered_map<TransferId, uint64_t> early_;  ///< came before they were posted; their epoch
};

}  // namespace stagecraft::detail
