#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "stagecraft/transport/core/transfer_id.h"
#include "stagecraft/transport/wire/byte_transport.h"

/// What goes over the wire from one rank to another.
///
/// Everything is a stream of frames, of which the receiver always has some posted. A frame is a
/// head and a body of `body_bytes`. Tensors that are too large for it follow as messages of their
/// own, straight from and into their memory:
///
///   frame   [head | layout, if it is a new one | numbers and texts | small tensors]
///   tensors with the tag of the layout, each
///
/// Tensors of a device go over a device link where the engine has one, in the order of the frames
/// (device_link.h), or are copied through the CPU.
///
/// A layout is sent once and then named by its number. A receive that the rank has posted is likely
/// to bring what the last one on its edge has brought, so memory for that is posted with it, and
/// nothing waits for an answer. Memory that is not wanted any more is asked back: kRelease, to
/// which the sender answers kReleased and fills it with messages of one byte.
namespace stagecraft::detail {

enum class FrameKind : uint8_t {
  kData,
  kAbort,      ///< body: see abort_text
  kGoodbye,    ///< the rank's end is about to go; only kSeen comes after it
  kSeen,       ///< the goodbye: whoever said it may close the connection, and nothing is lost
  kHeartbeat,  ///< so that silence means something
  kRelease,    ///< `count` messages of `layout`, of `parts` tensors each, shall be filled
  kReleased,   ///< the next `count` are
  kCome,       ///< to rank 0: this rank is in a meeting
  kWithdraw,   ///< to rank 0: and is not any more
  kMet,        ///< from rank 0: all are. Body: what each brought
  kWithdrawn,  ///< from rank 0: they were not. Body: who was missing
};
constexpr auto kLastFrameKind = FrameKind::kWithdrawn;

struct FrameHead {
  static constexpr uint32_t kMagic = 0x32574353;  // "SCW2"

  uint32_t magic = kMagic;
  FrameKind kind = FrameKind::kData;
  uint8_t direction = 0;     ///< of the transfer
  uint8_t is_recovery = 0;   ///< of a meeting
  uint8_t body_follows = 0;  ///< as a message of its own, since it is too large for a frame
  uint64_t number = 0;       ///< of the frame, from this sender to this receiver
  uint64_t epoch = 0;        ///< how often the world has recovered
  uint64_t step = 0;         ///< of the transfer; of a meeting, which attempt of the receiver
  int32_t from = 0;
  int32_t to = 0;
  int32_t microbatch = 0;
  uint32_t layout = 0;        ///< its number
  uint32_t layout_bytes = 0;  ///< 0: it is known
  uint32_t count = 0;
  uint64_t forget = 0;      ///< layouts below this number will not be named any more
  uint64_t body_bytes = 0;  ///< with the layout
  uint64_t tensor_bytes = 0;
  uint32_t parts = 0;
  uint32_t has_checksum = 0;
  uint64_t body_checksum = 0;
  uint64_t tensor_checksum = 0;
  uint64_t head_checksum = 0;  ///< of all of the above

  TransferId transfer() const {
    return {step, static_cast<Direction>(direction), StageId(from), StageId(to),
            MicrobatchId(microbatch)};
  }
  void set_transfer(const TransferId& id) {
    step = id.step;
    direction = static_cast<uint8_t>(id.direction);
    from = id.from.value();
    to = id.to.value();
    microbatch = id.microbatch.value();
  }
};
static_assert(std::is_trivially_copyable_v<FrameHead> && sizeof(FrameHead) == 112);

/// Of a frame with its head; what is larger follows it.
constexpr std::size_t kFrameBytes = 72 * 1024;
constexpr std::size_t kMaxBody = kFrameBytes - sizeof(FrameHead);
/// Of all tensors inside a frame: copying these costs less than a message of their own.
constexpr std::size_t kMaxSmall = 64 * 1024;
/// How many frames a receiver has posted for each peer.
constexpr int kPostedFrames = 8;

constexpr ByteTransport::Tag kFrameTag = 1;
constexpr ByteTransport::Tag kBodyTag = 2;
/// That of layout 0.
constexpr ByteTransport::Tag kFirstLayoutTag = 16;
/// Of all tags: an engine with larger ones has room for a number of its own above them.
constexpr ByteTransport::Tag kLastTag = (1 << 16) - 1;
/// Few layouts are known at a time, so no two of them share a tag.
constexpr ByteTransport::Tag tag_of(uint32_t layout) {
  return kFirstLayoutTag + static_cast<ByteTransport::Tag>(layout % (uint32_t{1} << 15U));
}

/// As it stands in front of a frame, with its checksum.
void seal(FrameHead& head);
/// MetadataError unless it is the head of frame `number`.
FrameHead read_head(std::string_view frame, uint64_t number);

/// How the elements of a tensor travel.
enum class Way : uint8_t {
  kFrame,    ///< inside the frame
  kMessage,  ///< as a message of their own
  kLink,     ///< over the device link, past the host
};
/// That of each of a value's tensors that does not go over the link, by their sizes.
class WayPlan {
 public:
  Way next(std::size_t bytes, bool by_link);

 private:
  std::size_t used_ = 0;
};

/// Which edge of the stage graph a transfer goes along.
struct Edge {
  uint8_t direction = 0;
  int32_t from = 0;
  int32_t to = 0;

  static Edge of(const TransferId& id) {
    return {static_cast<uint8_t>(id.direction), id.from.value(), id.to.value()};
  }
  friend auto operator<=>(const Edge&, const Edge&) = default;
};

}  // namespace stagecraft::detail
