#include "stagecraft/transport/wire/outbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "stagecraft/base/assert.h"
#include "stagecraft/base/checksum.h"
#include "stagecraft/base/error.h"
#include "stagecraft/base/thread_name.h"
#include "stagecraft/transport/device/staging.h"
#include "stagecraft/transport/wire/bytes.h"
#include "stagecraft/transport/wire/packed_value.h"

namespace stagecraft::detail {
namespace {

// Bounds the memory for models whose shapes keep changing, on both ranks. Far below the 32768 tags
// of layouts, so two layouts in use never share a tag.
constexpr std::size_t kMaxLayouts = 512;
// 16 frames of 72 KiB: at most 1.1 MiB stay allocated for each peer.
constexpr std::size_t kMaxFreeFrames = 16;
// A posted frame needs no attention. Its memory is taken back when this many have accumulated.
// A live peer confirms heartbeats every 200 ms, so one or two are unconfirmed, and a peer that
// exchanges only heartbeats needs no thread. Eight frames hold 576 KiB.
constexpr std::size_t kMaxUnseen = 8;
// With more sends than this in the queue, a heartbeat would only make the queue longer: each queued
// frame shows the peer that this rank is alive.
constexpr std::size_t kMaxHeartbeats = 64;
// Copying this many bytes takes longer than waking the thread that copies them instead.
// gloo transfers about 2.8 GB/s (16 MB there and back in 11.7 ms, docs/benchmarks.md), so 512 KiB
// take 0.2 ms. Waking a thread takes tens of microseconds.
constexpr std::size_t kCopiedElsewhere = 512 * 1024;

std::string key_of(const Edge& edge, const std::string& layout) {
  ByteWriter key;
  key.put(edge.direction);
  key.put(edge.from);
  key.put(edge.to);
  key.put_raw(layout.data(), layout.size());
  return key.take();
}

std::size_t num_bytes(const at::Tensor& bytes) {
  return static_cast<std::size_t>(bytes.numel());
}

at::Tensor new_bytes(std::size_t size) {
  return at::empty({static_cast<int64_t>(size)}, at::kByte);
}

}  // namespace

Outbox::Outbox(ByteTransport& byte_transport, DeviceLink* link, Rank to, bool use_checksums,
               std::function<void()> on_sent, OnFailed on_failed)
    : byte_transport_(byte_transport),
      link_(link),
      to_(to),
      use_checksums_(use_checksums),
      on_sent_(std::move(on_sent)),
      on_failed_(std::move(on_failed)) {}

Outbox::~Outbox() {
  close();
  send_queue_.reset();
  if (thread_.joinable()) thread_.join();
}

void Outbox::require_open() const {
  if (closed_) throw ConnectionLost("the connection is closed");
}

SendingPtr Outbox::send_value(FrameHead head, EncodedValue value) {
  std::size_t parts = 0;
  std::size_t bytes = 0;
  bool waits = std::any_of(value.tensors.begin(), value.tensors.end(),
                           [](const at::Tensor& tensor) { return !tensor.is_cpu(); });
  bool uses_link = false;
  WayPlan plan;
  for (std::size_t i = 0; i < value.tensors.size(); ++i) {
    const auto way = plan.next(num_bytes(value.tensors[i]), value.by_link[i]);
    if (way != Way::kFrame) ++parts;
    if (way == Way::kMessage) bytes += num_bytes(value.tensors[i]);
    uses_link = uses_link || way == Way::kLink;
  }
  waits = waits || uses_link ||
          (bytes >= kCopiedElsewhere && (use_checksums_ || byte_transport_.copies_in_send()));
  SendingPtr sending;
  // A value that waits has one part more, until it is posted.
  if (parts > 0 || waits) sending = std::make_shared<Sending>(waits ? parts + 1 : parts);
  if (!waits) {
    post_value(head, value, sending);
    return sending;
  }
  require_open();
  // On the calling thread: the copies must wait for its current stream, which the thread of the
  // send queue does not know.
  auto ready = copy_to_host(value.tensors, value.by_link, value.sources, copies_);
  const auto on_ready = [this, head, value = std::move(value), sending,
                         uses_link](const SendQueue::Outcome& outcome) {
    std::string failure = outcome.failure;
    bool is_posted = false;
    try {
      const auto is_closed = [this] { return closed_.load(); };
      const bool is_linked =
          !uses_link || !outcome.is_ready || link_->open(to_, head.epoch, is_closed);
      if (outcome.is_ready && is_linked) {
        post_value(head, value, sending);
        is_posted = true;
      }
    } catch (const ConnectionLost&) {
      // The inbox detects it, too, and reports it.
    } catch (...) {
      failure = describe(std::current_exception());
    }
    // Before the part is finished: a thread that waits for the value then finds the failure. The
    // abort (on_failed_) comes after that.
    if (!failure.empty()) sending->set_failure(failure);
    finish_part(sending, is_posted);
    if (!failure.empty()) on_failed_(head, failure);
  };
  send_queue().add(std::move(ready), on_ready);
  return sending;
}

SendQueue& Outbox::send_queue() {
  const std::lock_guard lock(queue_mutex_);
  if (!send_queue_) send_queue_ = std::make_unique<SendQueue>(to_);
  // `close` has run before the queue existed, so it could not stop the queue.
  if (closed_) send_queue_->stop();
  return *send_queue_;
}

bool Outbox::flush(Deadline deadline) {
  {
    const std::lock_guard lock(queue_mutex_);
    if (!send_queue_) return true;
  }
  if (send_queue_->flush(deadline)) return true;
  send_queue_->stop();
  return false;
}

void Outbox::post_value(FrameHead head, const EncodedValue& value, const SendingPtr& sending) {
  std::vector<std::string_view> body = {std::string_view(), value.values};
  std::vector<Way> ways;
  WayPlan plan;
  for (std::size_t i = 0; i < value.tensors.size(); ++i) {
    const auto& bytes = value.tensors[i];
    ways.push_back(plan.next(num_bytes(bytes), value.by_link[i]));
    if (ways.back() == Way::kFrame) {
      body.push_back(text_of(bytes));
      continue;
    }
    head.tensor_bytes += num_bytes(bytes);
    // The host does not see the bytes that go over the device link, so they have no checksum.
    if (use_checksums_ && ways.back() == Way::kMessage) {
      head.tensor_checksum = checksum(as_bytes(text_of(bytes)), head.tensor_checksum);
    }
  }

  // Layouts are numbered under this lock: the frame that defines a layout is posted before all
  // frames that refer to it. Checksums are computed before, so heartbeats need not wait for them.
  const std::lock_guard lock(sending_);
  require_open();
  head.layout = number_of(Edge::of(head.transfer()), value.layout, head);
  if (head.layout_bytes > 0) body[0] = value.layout;
  post_frame(head, body);
  const auto tag = tag_of(head.layout);
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const auto& bytes = value.tensors[i];
    if (ways[i] == Way::kMessage) post(tag, bytes, {}, sending);
    if (ways[i] == Way::kLink) {
      const SideStreams::Guard guard(sends_, bytes.device());
      keep({link_->send(to_, head.epoch, bytes), {}, sending, head});
    }
  }
}

uint32_t Outbox::number_of(const Edge& edge, const std::string& layout, FrameHead& head) {
  auto key = key_of(edge, layout);
  const auto known = layouts_.find(key);
  if (known != layouts_.end()) {
    head.forget = next_layout_ - static_cast<uint32_t>(layouts_by_age_.size());
    return known->second;
  }
  // The oldest layout goes, even if it is still in use: the known layouts are then a range of
  // numbers, and one number in each frame (`forget`) keeps the receiver's table equal.
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

bool Outbox::send_if(const std::function<bool()>& condition, const FrameHead& head) {
  const std::lock_guard lock(sending_);
  require_open();
  if (!condition()) return false;
  FrameHead frame = head;
  post_frame(frame, {});
  return true;
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
  // Still under the lock. Messages of one tag fill receives in order, so a value of the same layout
  // that came in between would end up in memory that the peer is about to drop.
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
    // The peer has posted receives of kFrameBytes, so a longer body needs a message of its own.
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
  // Only the size changes; the memory is ours alone.
  frame.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(size)});
  post(kFrameTag, frame, frame, nullptr);
  if (separate.defined()) post(kBodyTag, separate, {}, nullptr);
}

void Outbox::post(ByteTransport::Tag tag, const at::Tensor& bytes, at::Tensor frame,
                  SendingPtr value) {
  Item item;
  try {
    item.work = byte_transport_.send(to_, tag, bytes);
  } catch (const std::exception& error) {
    throw ConnectionLost(error.what());
  }
  // MPI often completes small sends at once. Their frames need neither the queue nor the thread.
  if (!value && item.work->is_done()) {
    const std::lock_guard lock(queue_mutex_);
    take_back(std::move(frame));
    return;
  }
  item.frame = std::move(frame);
  item.value = std::move(value);
  keep(std::move(item));
}

void Outbox::take_back(at::Tensor frame) {
  if (frame.defined() && free_frames_.size() < kMaxFreeFrames) {
    free_frames_.push_back(std::move(frame));
  }
}

void Outbox::keep(Item item) {
  std::unique_lock lock(queue_mutex_);
  if (closed_) {
    // The thread may have ended.
    lock.unlock();
    return finish(item, false);
  }
  wanted_ = wanted_ || item.value != nullptr || queue_.size() >= kMaxUnseen;
  // The tensors of a value have the number of their frame: the peer counts a frame as read when it
  // has read the tensors, too.
  item.frame_number = frames_ - 1;
  queue_.push_back(std::move(item));
  if (!wanted_) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
}

std::vector<Outbox::Item> Outbox::take_read() {
  SC_ASSERT(!thread_.joinable());
  std::vector<Item> items;
  while (!queue_.empty() && queue_.front().frame_number < read_) {
    items.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  num_seen_ += items.size();
  return items;
}

void Outbox::tick(uint64_t epoch, std::string_view progress, uint64_t frames_read) {
  std::vector<Item> read;
  {
    const std::lock_guard lock(queue_mutex_);
    if (thread_.joinable()) {
      wanted_ = !queue_.empty();
      if (wanted_) changed_.notify_all();
    } else {
      read = take_read();
    }
  }
  for (auto& item : read) {
    try {
      // The peer has the bytes, so this does not wait for the peer.
      if (!item.work->wait()) continue;
    } catch (const std::exception&) {
      // The inbox detects a lost connection, too, and reports it.
      continue;
    }
    const std::lock_guard lock(queue_mutex_);
    take_back(std::move(item.frame));
  }
  {
    const std::lock_guard lock(queue_mutex_);
    // Queued sends serve as heartbeats while they make progress. If they do not, a new send may
    // make the library report a lost connection.
    const bool moves = std::exchange(seen_at_tick_, num_seen_) != num_seen_;
    if (queue_.size() > kMaxHeartbeats && moves) return;
  }
  const std::lock_guard lock(sending_);
  require_open();
  if (frames_ == frames_at_tick_ || !progress.empty()) {
    FrameHead head;
    head.kind = FrameKind::kHeartbeat;
    head.epoch = epoch;
    head.step = frames_read;
    post_frame(head, {progress});
  }
  frames_at_tick_ = frames_;
}

void Outbox::close() {
  const std::lock_guard lock(queue_mutex_);
  closed_ = true;
  if (send_queue_) send_queue_->stop();
  if (current_) current_->interrupt();
  changed_.notify_all();
}

void Outbox::run() {
  name_thread("sc out " + to_string(to_));
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
    std::string failure;
    try {
      while (!is_sent && !closed_) is_sent = item.work->wait();
    } catch (const c10::Error& error) {
      // A device link: this rank's own device failed. Otherwise the inbox detects the error, too,
      // and reports it.
      if (item.link_head) failure = error.what_without_backtrace();
    } catch (const std::exception&) {
      // The inbox detects a lost connection, too, and reports it.
    }
    item.work.reset();
    lock.lock();
    ++num_seen_;
    current_.reset();
    if (is_sent) take_back(std::move(item.frame));
    // Frames without a value gather again until kMaxUnseen or the next tick, and do not wake this
    // thread one by one.
    if (is_last && queue_.empty()) wanted_ = false;
    lock.unlock();
    if (!failure.empty()) item.value->set_failure(failure);
    // Without the lock: on_sent_ wakes threads, and takes a lock of the transport for that.
    finish(item, is_sent);
    if (!failure.empty()) on_failed_(*item.link_head, failure);
    lock.lock();
  }
}

void Outbox::finish(Item& item, bool is_sent) {
  if (!item.value) return;
  finish_part(item.value, is_sent);
  item.value.reset();
}

void Outbox::finish_part(const SendingPtr& value, bool is_sent) {
  if (value->finish_part(is_sent)) on_sent_();
}

}  // namespace stagecraft::detail
