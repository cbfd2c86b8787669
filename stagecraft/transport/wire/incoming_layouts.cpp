#include "stagecraft/transport/wire/incoming_layouts.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>

#include "stagecraft/base/check.h"

namespace stagecraft::detail {
namespace {

// After two equal layouts in a row, the edge is expected to repeat: memory is posted ahead.
// One value is no sign of a habit. A wrong guess costs two frames (kRelease, kReleased) and a
// message of one byte for each tensor. A right guess saves a large tensor the wait for its receive:
// gloo sends nothing before the receive is posted.
constexpr uint64_t kHabit = 2;

std::optional<c10::Device> link_device(const DeviceLink* link) {
  return link == nullptr ? std::nullopt : std::optional(link->device());
}

}  // namespace

IncomingLayouts::IncomingLayouts(ByteTransport& byte_transport, DeviceLink* link, Rank from)
    : byte_transport_(byte_transport), link_(link), from_(from), home_(link_device(link)) {}

void IncomingLayouts::expect(const TransferId& id, uint64_t epoch) {
  const std::lock_guard lock(mutex_);
  const auto early = early_.find(id);
  if (early != early_.end() && early->second == epoch) {
    // The frame was faster than this receive, and has already allocated its memory.
    early_.erase(early);
    return;
  }
  auto& edge = edges_[Edge::of(id)];
  edge.expected.insert(id);
  if (edge.repeats < kHabit) return;
  const auto found = layouts_.find(edge.layout);
  if (found == layouts_.end() || found->second.num_messages == 0) return;
  auto& known = found->second;
  // Memory that was asked back is not counted: one-byte messages of the peer will use it up.
  while (known.posted.size() < known.asked_back + edge.expected.size()) {
    known.posted.push_back(post(found->first, known));
  }
}

void IncomingLayouts::expect_nothing(uint64_t epoch) {
  const std::lock_guard lock(mutex_);
  epoch_ = epoch;
  // Posted memory stays posted, because a receive cannot be cancelled. Values of the next epoch use
  // it.
  for (auto& [edge, state] : edges_) state.expected.clear();
  std::erase_if(early_, [&](const auto& entry) { return entry.second < epoch; });
}

void IncomingLayouts::learn(uint32_t number, const Edge& edge, std::string_view layout) {
  Known known;
  known.edge = edge;
  // Shared: a value that is being built needs its layout even if a later frame forgets the layout.
  known.layout = std::make_shared<const ValueLayout>(layout);
  require<MetadataError>(link_ != nullptr || !known.layout->uses_link(),
                         "a message has a tensor for a device link, which is not available");
  for (const auto& part : known.layout->parts()) {
    if (part.way != Way::kFrame) known.separate_bytes += part.bytes;
    if (part.way == Way::kMessage) ++known.num_messages;
  }
  const std::lock_guard lock(mutex_);
  const bool is_new = layouts_.emplace(number, std::move(known)).second;
  require<MetadataError>(is_new, "layout {} was sent twice", number);
}

IncomingLayouts::Taken IncomingLayouts::take(const FrameHead& head) {
  const std::lock_guard lock(mutex_);
  const auto found = layouts_.find(head.layout);
  require<MetadataError>(found != layouts_.end(), "a frame refers to layout {}, which was not sent",
                         head.layout);
  auto& known = found->second;
  require<MetadataError>(known.edge == Edge::of(head.transfer()),
                         "a frame refers to layout {}, which belongs to a different edge",
                         head.layout);
  require<MetadataError>(known.separate_bytes == head.tensor_bytes,
                         "a frame announces {} bytes of tensors, its layout has {}",
                         head.tensor_bytes, known.separate_bytes);

  Taken taken;
  auto& edge = edges_[known.edge];
  // With the epoch, because a receive of a different epoch may have the same id. The value of an
  // older epoch is dropped, and counts for no receive.
  const bool was_expected = head.epoch == epoch_ && edge.expected.erase(head.transfer()) > 0;
  if (head.epoch >= epoch_ && !was_expected) early_[head.transfer()] = head.epoch;
  if (edge.layout == head.layout && edge.repeats > 0) {
    ++edge.repeats;
  } else {
    const auto old = layouts_.find(edge.layout);
    if (edge.repeats > 0 && old != layouts_.end())
      taken.release = ask_back(old->first, old->second);
    edge.layout = head.layout;
    edge.repeats = 1;
  }
  taken.layout = known.layout;
  // In the order of posting: messages of one tag fill receives in that order, and a layout has one
  // tag.
  if (known.posted.empty()) {
    taken.memory = post(head.layout, known);
  } else {
    taken.memory = std::move(known.posted.front());
    known.posted.pop_front();
  }
  // Never ahead of the frame: NCCL has no tags, and a receive without a send would block the
  // stream.
  post_on_link(known, head.epoch, taken.memory);
  return taken;
}

IncomingLayouts::Posted IncomingLayouts::post(uint32_t number, const Known& known) {
  Posted posted;
  posted.tensors = known.layout->allocate(home_);
  for (const auto& part : known.layout->parts()) {
    if (part.way != Way::kMessage) continue;
    const auto& bytes = posted.tensors[part.tensor].bytes();
    posted.works.push_back(byte_transport_.receive(from_, tag_of(number), bytes));
  }
  return posted;
}

void IncomingLayouts::post_on_link(const Known& known, uint64_t epoch, Posted& posted) {
  if (!known.layout->uses_link()) return;
  known.layout->allocate_for_link(posted.tensors);
  for (const auto& part : known.layout->parts()) {
    if (part.way != Way::kLink) continue;
    link_->receive(from_, epoch, posted.tensors[part.tensor].bytes());
  }
}

std::optional<FrameHead> IncomingLayouts::ask_back(uint32_t number, Known& known) {
  // Memory is asked back once. A second request would make the peer send more messages than there
  // are receives, and the surplus would fill memory of a later value.
  if (known.posted.size() <= known.asked_back) return std::nullopt;
  FrameHead head;
  head.kind = FrameKind::kRelease;
  head.layout = number;
  head.count = static_cast<uint32_t>(known.posted.size() - known.asked_back);
  head.parts = static_cast<uint32_t>(known.num_messages);
  known.asked_back = known.posted.size();
  return head;
}

std::vector<WorkPtr> IncomingLayouts::take_back(const FrameHead& head) {
  const std::lock_guard lock(mutex_);
  const auto found = layouts_.find(head.layout);
  require<MetadataError>(found != layouts_.end() && found->second.asked_back >= head.count &&
                             found->second.num_messages == head.parts,
                         "memory of layout {} was released without a request", head.layout);
  auto& known = found->second;
  known.asked_back -= head.count;
  std::vector<WorkPtr> works;
  for (uint32_t i = 0; i < head.count; ++i) {
    if (!known.posted.empty()) {
      auto& front = known.posted.front().works;
      works.insert(works.end(), front.begin(), front.end());
      known.posted.pop_front();
      continue;
    }
    // A value has used the memory in the meantime.
    for (std::size_t part = 0; part < known.num_messages; ++part) {
      // The peer fills as many receives as it was asked for. If values have used them, new ones
      // must take the messages, or those would fill memory of later values.
      works.push_back(
          byte_transport_.receive(from_, tag_of(head.layout), at::empty({1}, at::kByte)));
    }
  }
  return works;
}

std::vector<FrameHead> IncomingLayouts::forget_below(uint64_t number) {
  const std::lock_guard lock(mutex_);
  std::vector<FrameHead> releases;
  for (auto entry = layouts_.begin(); entry != layouts_.end() && entry->first < number;) {
    if (const auto release = ask_back(entry->first, entry->second)) releases.push_back(*release);
    // A layout with posted memory stays until kReleased: the memory must live while a receive may
    // write to it.
    const bool is_done = entry->second.posted.empty() && entry->second.asked_back == 0;
    entry = is_done ? layouts_.erase(entry) : std::next(entry);
  }
  return releases;
}

std::size_t IncomingLayouts::num_posted() const {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& [number, known] : layouts_) count += known.posted.size();
  return count;
}

std::size_t IncomingLayouts::num_early() const {
  const std::lock_guard lock(mutex_);
  return early_.size();
}

}  // namespace stagecraft::detail
