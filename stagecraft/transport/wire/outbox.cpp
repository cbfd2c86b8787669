#include "stagecraft/transport/wire/outbox.h"

#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>

#include "stagecraft/base/checksum.h"
#include "stagecraft/transport/wire/bytes.h"
#include "stagecraft/transport/wire/name_thread.h"

namespace stagecraft::detail {
namespace {

constexpr std::size_t kMaxLayouts = 512;
constexpr std::size_t kMaxFreeFrames = 16;
// A frame that was sent needs nobody; its memory is taken back when there are so many.
constexpr std::size_t kMaxUnseen = 8;
constexpr std::size_t kMaxHeartbeats = 64;

std::string key_of(const Edge& edge, const std::string& layout) {
  ByteWriter key;
  key.put(edge.direction);
  key.put(edge.from);
  key.put(edge.to);
  key.put_raw(layout.data(), layout.size());
  return key.take();
}

std::string_view text_of(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()),
          static_cast<std::size_t>(bytes.numel())};
}

at::Tensor new_bytes(std::size_t size) {
  return at::empty({static_cast<int64_t>(size)}, at::kByte);
}

}  // namespace

Outbox::Outbox(Engine& engine, Rank to, bool use_checksums, std::function<void()> on_sent)
    : engine_(engine),
      to_(to),
      use_checksums_(use_checksums),
      on_sent_(std::move(on_sent)),
      thread_([this] { run(); }) {}

Outbox::~Outbox() {
  close();
  thread_.join();
}

void Outbox::require_open() const {
  if (closed_) throw ConnectionLost("the connection is closed");
}

Outbox::SendingPtr Outbox::send_value(FrameHead head, const EncodedValue& value) {
  std::vector<std::size_t> sizes;
  for (const auto& tensor : value.tensors)
    sizes.push_back(static_cast<std::size_t>(tensor.numel()));
  const auto is_small = small_tensors(sizes);
  std::vector<at::Tensor> large;
  std::vector<std::string_view> body = {std::string_view(), value.values};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (is_small[i]) {
      body.push_back(text_of(value.tensors[i]));
    } else {
      large.push_back(value.tensors[i]);
      head.tensor_bytes += sizes[i];
      if (use_checksums_) {
        head.tensor_checksum = checksum(as_bytes(text_of(value.tensors[i])), head.tensor_checksum);
      }
    }
  }

  const std::lock_guard lock(sending_);
  require_open();
  head.layout = number_of(Edge::of(head.transfer()), value.layout, head);
  if (head.layout_bytes > 0) body[0] = value.layout;
  SendingPtr sending;
  if (!large.empty()) {
    sending = std::make_shared<Sending>();
    sending->left_ = large.size();
  }
  post_frame(head, body);
  const auto tag = tag_of(head.layout);
  for (const auto& tensor : large) post(tag, tensor, {}, sending);
  return sending;
}

uint32_t Outbox::number_of(const Edge& edge, const std::string& layout, FrameHead& head) {
  auto key = key_of(edge, layout);
  const auto known = layouts_.find(key);
  if (known != layouts_.end()) {
    head.forget = next_layout_ - static_cast<uint32_t>(layouts_by_age_.size());
    return known->second;
  }
  if (layouts_by_age_.size() == kMaxLayouts) {
    layouts_.erase(layouts_by_age_.front());
    layouts_by_age_.pop_front();
  }
  layouts_.emplace(key, next_layout_);
  layouts_by_age_.push_back(std::move(key));
  head.layout_bytes = static_cast<uint32_t>(layout.size());
  ++next_layout_;
  head.forget = next_layout_ - static_cast<uint32_t>(layouts_by_age_.size());
  return next_layout_ - 1;
}

void Outbox::send(FrameHead head, std::string_view body) {
  const std::lock_guard lock(sending_);
  require_open();
  post_frame(head, {body});
}

void Outbox::release(const FrameHead& request) {
  const std::lock_guard lock(sending_);
  require_open();
  FrameHead head;
  head.kind = FrameKind::kReleased;
  head.layout = request.layout;
  head.count = request.count;
  head.parts = request.parts;
  post_frame(head, {});
  const auto tag = tag_of(request.layout);
  const uint64_t messages = uint64_t{request.count} * request.parts;
  for (uint64_t i = 0; i < messages; ++i) post(tag, new_bytes(1), {}, nullptr);
}

void Outbox::post_frame(FrameHead& head, const std::vector<std::string_view>& body) {
  head.number = frames_++;
  for (const auto part : body) head.body_bytes += part.size();
  head.body_follows = head.body_bytes > kMaxBody ? 1 : 0;
  head.has_checksum = use_checksums_ ? 1 : 0;
  at::Tensor frame;
  {
    const std::lock_guard lock(queue_mutex_);
    if (!free_frames_.empty()) {
      frame = std::move(free_frames_.back());
      free_frames_.pop_back();
    }
  }
  if (!frame.defined()) frame = new_bytes(kFrameBytes);
  auto* const begin = static_cast<char*>(frame.mutable_data_ptr());
  at::Tensor separate;
  char* at = begin + sizeof(head);
  if (head.body_follows != 0) {
    separate = new_bytes(head.body_bytes);
    at = static_cast<char*>(separate.mutable_data_ptr());
  }
  const std::string_view whole(at, head.body_bytes);
  for (const auto part : body) {
    if (!part.empty()) std::memcpy(at, part.data(), part.size());
    at += part.size();
  }
  if (use_checksums_) head.body_checksum = checksum(as_bytes(whole));
  seal(head);
  std::memcpy(begin, &head, sizeof(head));
  const auto size = sizeof(head) + (separate.defined() ? 0 : head.body_bytes);
  post(kFrameTag, frame.narrow(0, 0, static_cast<int64_t>(size)), frame, nullptr);
  if (separate.defined()) post(kBodyTag, separate, {}, nullptr);
}

void Outbox::post(Engine::Tag tag, const at::Tensor& bytes, at::Tensor frame, SendingPtr value) {
  Item item;
  try {
    item.work = engine_.send(to_, tag, bytes);
  } catch (const std::exception& error) {
    throw ConnectionLost(error.what());
  }
  item.frame = std::move(frame);
  item.value = std::move(value);
  const std::lock_guard lock(queue_mutex_);
  wanted_ = wanted_ || item.value != nullptr || queue_.size() >= kMaxUnseen;
  queue_.push_back(std::move(item));
  if (wanted_) changed_.notify_all();
}

void Outbox::tick(uint64_t epoch) {
  {
    const std::lock_guard lock(queue_mutex_);
    wanted_ = !queue_.empty();
    if (wanted_) changed_.notify_all();
    if (queue_.size() > kMaxHeartbeats) return;
  }
  const std::lock_guard lock(sending_);
  require_open();
  if (frames_ == frames_at_tick_) {
    FrameHead head;
    head.kind = FrameKind::kHeartbeat;
    head.epoch = epoch;
    post_frame(head, {});
  }
  frames_at_tick_ = frames_;
}

void Outbox::close() {
  const std::lock_guard lock(queue_mutex_);
  closed_ = true;
  if (current_) current_->interrupt();
  changed_.notify_all();
}

void Outbox::run() {
  name_thread("sc out", to_);
  std::unique_lock lock(queue_mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closed_ || (wanted_ && !queue_.empty()); });
    if (closed_ && queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    current_ = item.work;
    const bool is_last = queue_.empty();
    lock.unlock();
    bool is_sent = false;
    try {
      while (!is_sent && !closed_) is_sent = item.work->wait();
    } catch (const std::exception&) {
      // The inbox sees it too, and says so.
    }
    item.work.reset();
    lock.lock();
    current_.reset();
    if (is_sent && item.frame.defined() && free_frames_.size() < kMaxFreeFrames) {
      free_frames_.push_back(std::move(item.frame));
    }
    if (is_last && queue_.empty()) wanted_ = false;
    lock.unlock();
    finish(item, is_sent);
    lock.lock();
  }
}

void Outbox::finish(Item& item, bool is_sent) {
  if (!item.value) return;
  if (!is_sent) item.value->is_lost_ = true;
  const bool is_done = item.value->left_.fetch_sub(1) == 1;
  item.value.reset();
  if (is_done) on_sent_();
}

}  // namespace stagecraft::detail
