#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "stagecraft/transport/core/transfer_id.h"
#include "stagecraft/transport/wire/byte_transport.h"

/// The protocol from rank to rank.
///
/// Each directed pair of ranks has a stream of frames. The receiver always has some receives for
/// them posted. A frame is a header and a body of `body_bytes`. Tensors that are too large for the
/// frame follow as messages of their own, directly from and into their memory:
///
///   frame     [header | layout, if it is new | numbers and texts | small tensors]
///   tensors   one message each, with the tag of the layout
///
/// Tensors of a device go over the device link, if there is one, in the order of the frames
/// (device/device_link.h). Otherwise they are copied through the CPU.
///
/// A layout is sent once and then referred to by its number. A posted receive will probably bring
/// the layout that the last value on its edge had, so memory for that is posted with it, without a
/// round trip. A posted receive cannot be cancelled. If the memory turns out not to be needed, the
/// receiver sends kRelease; the sender answers kReleased and fills the memory with messages of one
/// byte.
namespace stagecraft::detail {

enum class FrameKind : uint8_t {
  kData,
  kAbort,      ///< body: rank, message and is_lost of the reason
  kGoodbye,    ///< the rank is about to leave; only kSeen may follow
  kSeen,       ///< answers kGoodbye: the connection may be closed without loss
  kHeartbeat,  ///< every 200 ms; `step` frames of the peer were read. Body: progress
  kRelease,    ///< asks to fill `count` receives of `layout`, of `parts` tensors each
  kReleased,   ///< answers kRelease: the next `count` are filled
  kCome,       ///< to rank 0: this rank takes part in a collective
  kWithdraw,   ///< to rank 0: this rank's deadline has passed
  kMet,        ///< from rank 0: all ranks have come. Body: what each brought
  kWithdrawn,  ///< from rank 0: not all had come. Body: the missing ranks
  kConnect,    ///< connects the device link from this rank. Body: the link's key
};
constexpr auto kLastFrameKind = FrameKind::kConnect;

struct FrameHead {
  static constexpr uint32_t kMagic = 0x33574353;  // "SCW3"

  uint32_t magic = kMagic;
  FrameKind kind = FrameKind::kData;
  uint8_t direction = 0;     ///< direction of the transfer
  uint8_t is_recovery = 0;   ///< of a collective: it is a recovery
  uint8_t body_follows = 0;  ///< the body is too large for the frame and follows separately
  uint64_t number = 0;       ///< number of the frame in its stream
  uint64_t epoch = 0;        ///< number of recoveries
  uint64_t step = 0;  ///< of the transfer; for a collective, the rank's attempt; see kHeartbeat
  int32_t from = 0;
  int32_t to = 0;
  int32_t microbatch = 0;
  uint32_t layout = 0;        ///< number of the layout
  uint32_t layout_bytes = 0;  ///< 0: the layout was sent before
  uint32_t count = 0;
  uint64_t forget = 0;      ///< layouts below this number are no longer used
  uint64_t body_bytes = 0;  ///< including the layout
  uint64_t tensor_bytes = 0;
  uint32_t parts = 0;
  uint32_t has_checksum = 0;
  uint64_t body_checksum = 0;
  uint64_t tensor_checksum = 0;
  uint64_t head_checksum = 0;  ///< of all fields above

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

/// The size of a posted frame, with its header: kMaxSmall and 8 KiB for header, layout, numbers and
/// texts. A larger body follows separately.
constexpr std::size_t kFrameBytes = 72 * 1024;
constexpr std::size_t kMaxBody = kFrameBytes - sizeof(FrameHead);
/// The largest size of all tensors inside a frame. Copying this much costs less than a separate
/// message.
constexpr std::size_t kMaxSmall = 64 * 1024;
/// The number of frames that a receiver has posted for each peer.
/// gloo sends a frame only when its receive is posted, so this many frames can arrive before the
/// reader must post again. They take 576 KiB for each peer: 35 MiB with 63 peers.
constexpr int kPostedFrames = 8;

constexpr ByteTransport::Tag kFrameTag = 1;
constexpr ByteTransport::Tag kBodyTag = 2;
/// The tag of layout 0.
constexpr ByteTransport::Tag kFirstLayoutTag = 16;
/// The largest tag. A library with larger tags can put a number of its own above it.
constexpr ByteTransport::Tag kLastTag = (1 << 16) - 1;
/// Few layouts are known at a time, so no two of them share a tag.
constexpr ByteTransport::Tag tag_of(uint32_t layout) {
  return kFirstLayoutTag + static_cast<ByteTransport::Tag>(layout % (uint32_t{1} << 15U));
}

/// Fills in the checksum of the header.
void seal(FrameHead& head);
/// Reads the header of frame `number`. MetadataError if the frame has a different number or is
/// damaged.
FrameHead read_head(std::string_view frame, uint64_t number);

/// How the elements of a tensor travel.
enum class Way : uint8_t {
  kFrame,    ///< inside the frame
  kMessage,  ///< as a message of their own
  kLink,     ///< over the device link, without the host
};
/// Chooses, by size, how each tensor of a value travels. `next` is called for each tensor in order.
class WayPlan {
 public:
  Way next(std::size_t bytes, bool by_link);

 private:
  std::size_t used_ = 0;
};

/// The edge of the stage graph that a transfer belongs to.
struct Edge {
  uint8_t direction = 0;
  int32_t from = 0;
  int32_t to = 0;

  static Edge of(const TransferId& id) {
    return {static_cast<uint8_t>(id.direction), id.from.value(), id.to.value()};
  }
  // clang-tidy 14 takes the comparison with 0 in it for a null pointer.
  // NOLINTNEXTLINE(modernize-use-nullptr)
  friend auto operator<=>(const Edge&, const Edge&) = default;
};

}  // namespace stagecraft::detail
