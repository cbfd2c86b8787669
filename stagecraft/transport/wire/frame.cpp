#include "stagecraft/transport/wire/frame.h"

#include <cstring>

#include "stagecraft/base/check.h"
#include "stagecraft/base/checksum.h"
#include "stagecraft/transport/wire/bytes.h"

namespace stagecraft::detail {
namespace {

uint64_t checksum_of(const FrameHead& head) {
  constexpr std::size_t kSize = offsetof(FrameHead, head_checksum);
  return checksum({reinterpret_cast<const std::byte*>(&head), kSize});
}

}  // namespace

void seal(FrameHead& head) {
  head.head_checksum = checksum_of(head);
}

FrameHead read_head(std::string_view frame, uint64_t number) {
  FrameHead head;
  require<MetadataError>(frame.size() >= sizeof(head), "a frame is shorter than its header");
  std::memcpy(&head, frame.data(), sizeof(head));
  require<MetadataError>(head.magic == FrameHead::kMagic, "a frame has no magic number");
  // Before any field is used: a damaged header could announce a body of any size. A header always
  // has a checksum, even without use_checksums: a wrong header would lose the whole stream.
  require<MetadataError>(head.head_checksum == checksum_of(head),
                         "the header of a frame is damaged");
  // The library keeps messages in order. A different number shows that a message was lost or taken
  // by a wrong receive, and that all later frames would be misread.
  require<MetadataError>(head.number == number, "expected frame {}, got frame {}", number,
                         head.number);
  require<MetadataError>(head.kind <= kLastFrameKind, "a frame has an unknown kind");
  require<MetadataError>(head.layout_bytes <= head.body_bytes, "a frame's layout is truncated");
  require<MetadataError>(head.body_follows != 0 || head.body_bytes <= kMaxBody,
                         "a frame exceeds the maximal size");
  return head;
}

Way WayPlan::next(std::size_t bytes, bool by_link) {
  if (by_link) return Way::kLink;
  // Sender and receiver make this choice from the same sizes in the same order, so the way of a
  // tensor does not travel.
  if (bytes > kMaxSmall - used_) return Way::kMessage;
  used_ += bytes;
  return Way::kFrame;
}

}  // namespace stagecraft::detail
