#include "stagecraft/transport/wire/inbox.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/checksum.h"
#include "stagecraft/base/log.h"
#include "stagecraft/base/thread_name.h"
#include "stagecraft/transport/wire/packed_value.h"
#include "stagecraft/transport/wire/peer_state.h"

namespace stagecraft::detail {
namespace {

using Clock = Deadline::Clock;

// The device of a value's tensors; the first one if there are several, none if all are on the CPU.
std::optional<c10::Device> device_of(const ArrivingTensors& tensors) {
  for (const auto& tensor : tensors) {
    if (!tensor.device().is_cpu()) return tensor.device();
  }
  return std::nullopt;
}

// A message that arrives more slowly than 1 MB/s counts as stalled.
constexpr auto kLongestPerByte = std::chrono::microseconds(1);
// A header may announce any number. Two counts of 2^48 bytes are 5.6e17 ns at 1 µs a byte, which
// fits 64 bits (9.2e18).
constexpr uint64_t kMaxCounted = uint64_t{1} << 48U;

}  // namespace

Inbox::Inbox(ByteTransport& byte_transport, DeviceLink* link, Rank from, InboxListener& listener)
    : byte_transport_(byte_transport),
      link_(link),
      from_(from),
      listener_(listener),
      layouts_(byte_transport, link, from) {
  touch();
}

Inbox::~Inbox() {
  stop();
  join();
}

void Inbox::join() {
  if (thread_.joinable()) thread_.join();
}

void Inbox::start() {
  thread_ = std::thread([this] { run(); });
}

void Inbox::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    if (current_) current_->interrupt();
  }
  // Without mutex_: a lock of the turn and mutex_ are never held together (docs/threads.md).
  turn_.close();
}

Clock::time_point Inbox::last_heard() const {
  const Clock::time_point last{Clock::duration(last_heard_.load())};
  const int64_t bytes = arriving_bytes_;
  // A communication library reports a message when it is complete. While a large one arrives, the
  // peer may send nothing else, and is not silent all the same.
  if (bytes == 0) return last;
  return std::min(Clock::now(), last + bytes * kLongestPerByte);
}

void Inbox::touch() {
  last_heard_ = Clock::now().time_since_epoch().count();
}

void Inbox::run() {
  name_thread("sc in " + to_string(from_));
  // read_frame also returns false if a rank's thread wants to read; then this thread waits again.
  while (turn_.take_thread()) {
    read_frame(Reader::kThread);
    turn_.release();
  }
}

// Taking the turn from the inbox's thread pays off only with libraries that prefer polling. With
// others that thread wakes as fast as the caller would.
void Inbox::poll_inline(const PendingPtr& awaited) {
  std::function<void()> ask_to_release;
  if (byte_transport_.prefers_polling()) ask_to_release = [this] { ask_thread_to_leave(); };
  const bool has_turn = turn_.take_inline(awaited, ask_to_release);
  is_wanted_ = false;
  if (!has_turn) return;
  is_poll_cancelled_ = false;
  while (!awaited->is_done() && read_frame(Reader::kCaller)) {
  }
  turn_.release(/*is_thread_next=*/is_poll_cancelled_);
}

void Inbox::ask_thread_to_leave() {
  const std::lock_guard lock(mutex_);
  is_wanted_ = true;
  if (current_ && current_reader_ == Reader::kThread) current_->interrupt();
}

void Inbox::cancel_poll() {
  const std::lock_guard lock(mutex_);
  is_poll_cancelled_ = true;
  if (current_ && current_reader_ == Reader::kCaller) current_->interrupt();
}

void Inbox::end(const std::string& why) {
  turn_.close();
  if (stopped_) return;
  if (has_ended_) {
    listener_.on_closed(from_);
  } else {
    listener_.on_lost(from_, why);
  }
}

// Reposts buffers before waiting, not after a frame has arrived, to keep this off the critical
// path.
void Inbox::post_frames() {
  while (frames_.size() < kPostedFrames) {
    auto bytes = std::exchange(spare_, {});
    if (!bytes.defined()) bytes = at::empty({static_cast<int64_t>(kFrameBytes)}, at::kByte);
    try {
      auto work = byte_transport_.receive(from_, kFrameTag, bytes);
      frames_.push_back({std::move(bytes), std::move(work)});
    } catch (const std::exception&) {
      // The connection is lost. Frames that arrived before may tell why, so they are read first.
      if (frames_.empty()) throw;
      return;
    }
  }
}

bool Inbox::await(const WorkPtr& work, Reader reader) {
  const auto must_go = [&] {
    return stopped_ || (reader == Reader::kCaller ? is_poll_cancelled_ : is_wanted_).load();
  };
  {
    const std::lock_guard lock(mutex_);
    // Checked under the lock: a thread that interrupts sets its flag first and then looks at
    // current_, so either the flag or the interrupt reaches this wait.
    if (must_go()) return false;
    current_ = work;
    current_reader_ = reader;
  }
  bool is_done = false;
  try {
    while (!is_done && !must_go()) {
      is_done = reader == Reader::kCaller ? work->wait_busily() : work->wait();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    current_.reset();
    throw;
  }
  const std::lock_guard lock(mutex_);
  current_.reset();
  return is_done;
}

bool Inbox::read_frame(Reader reader) {
  try {
    return read_message(reader);
  } catch (const OutOfMemory& error) {
    // The stream cannot be read beyond a message for which there is no memory.
    listener_.on_refused(from_, message_->head, error.what());
    end("its messages can no longer be read");
  } catch (const Error& error) {
    end(fmt::format("it sent an invalid message: {}", error.what()));
  } catch (const std::exception& error) {
    log(LogLevel::kDebug, fmt::format("connection to rank {}: {}", from_.value(), error.what()));
    end(kPeerEnded);
  }
  return false;
}

bool Inbox::read_message(Reader reader) {
  post_frames();
  // A reader that must stop leaves a message half read in message_. The next reader, perhaps on a
  // different thread, continues there.
  if (!message_ && !begin_message(reader)) return false;
  for (;;) {
    arriving_bytes_ = message_->awaited.empty() ? 0 : message_->num_bytes();
    while (!message_->awaited.empty()) {
      if (!await(message_->awaited.front(), reader)) return false;
      message_->awaited.pop_front();
      touch();
    }
    arriving_bytes_ = 0;
    if (message_->has_body) break;
    begin_parts();
  }
  finish_message();
  return true;
}

bool Inbox::begin_message(Reader reader) {
  if (!await(frames_.front().work, reader)) return false;
  touch();
  Message message;
  message.head = read_head(text_of(frames_.front().bytes), next_frame_++);
  message.frame = std::move(frames_.front());
  frames_.pop_front();
  if (message.head.body_follows != 0) {
    // This receive cannot be posted ahead: only the header tells the size.
    message.separate = at::empty({static_cast<int64_t>(message.head.body_bytes)}, at::kByte);
    message.awaited.push_back(byte_transport_.receive(from_, kBodyTag, message.separate));
  }
  message_ = std::move(message);
  return true;
}

std::string_view Inbox::Message::body() const {
  if (separate.defined()) return text_of(separate);
  return text_of(frame.bytes).substr(sizeof(head), head.body_bytes);
}

int64_t Inbox::Message::num_bytes() const {
  const uint64_t bytes =
      1 + std::min(head.body_bytes, kMaxCounted) + std::min(head.tensor_bytes, kMaxCounted);
  return static_cast<int64_t>(bytes);
}

void Inbox::begin_parts() {
  auto& message = *message_;
  const auto& head = message.head;
  message.has_body = true;
  message.is_whole =
      head.has_checksum == 0 || checksum(as_bytes(message.body())) == head.body_checksum;
  // A damaged frame may be skipped only if later frames do not depend on its layout.
  const bool can_be_left_out = head.kind == FrameKind::kData && head.layout_bytes == 0;
  require<MetadataError>(message.is_whole || can_be_left_out, "a frame was damaged in transit");
  std::vector<WorkPtr> works;
  if (head.kind == FrameKind::kData) {
    if (head.layout_bytes > 0) {
      layouts_.learn(head.layout, Edge::of(head.transfer()),
                     message.body().substr(0, head.layout_bytes));
    }
    begin_value();
    if (message.value.release) listener_.on_answer(from_, *message.value.release);
    for (const auto& release : layouts_.forget_below(head.forget)) {
      listener_.on_answer(from_, release);
    }
    works = message.value.memory.works;
  } else if (head.kind == FrameKind::kReleased) {
    works = layouts_.take_back(head);
  }
  message.awaited.assign(works.begin(), works.end());
}

void Inbox::begin_value() {
  // Receives of the link are posted on the stream on which tensors arrive.
  std::optional<SideStreams::Guard> guard;
  if (link_ != nullptr) guard.emplace(streams_, link_->device());
  message_->value = layouts_.take(message_->head);
}

void Inbox::finish_message() {
  const auto& head = message_->head;
  if (head.kind == FrameKind::kData) {
    finish_value();
  } else if (head.kind != FrameKind::kReleased) {
    has_ended_ = has_ended_ || head.kind == FrameKind::kGoodbye;
    listener_.on_control(from_, head, message_->body());
  }
  // The next receive reuses this memory, whose pages are already mapped. One spare is enough,
  // because one frame is read at a time.
  spare_ = std::move(message_->frame.bytes);
  message_.reset();
  // After everything that belongs to the frame: the peer releases the memory of its sends by this
  // number.
  ++num_read_;
}

void Inbox::finish_value() {
  const auto& head = message_->head;
  auto& taken = message_->value;
  // After the numbers and texts come the small tensors, up to the end.
  const auto& parts = taken.layout->parts();
  std::size_t small_bytes = 0;
  for (const auto& part : parts) small_bytes += part.way == Way::kFrame ? part.bytes : 0;
  std::string_view values = message_->body().substr(head.layout_bytes);
  require<MetadataError>(values.size() >= small_bytes, "a frame lacks {} bytes of tensors",
                         small_bytes - values.size());
  std::string_view small = values.substr(values.size() - small_bytes);
  values.remove_suffix(small_bytes);

  uint64_t sum = 0;
  for (const auto& part : parts) {
    const auto& bytes = taken.memory.tensors[part.tensor].bytes();
    if (part.way == Way::kFrame) {
      std::memcpy(bytes.mutable_data_ptr(), small.data(), part.bytes);
      small.remove_prefix(part.bytes);
    } else if (part.way == Way::kMessage && head.has_checksum != 0) {
      sum = checksum(as_bytes(text_of(bytes)), sum);
    }
  }
  if (!message_->is_whole || (head.has_checksum != 0 && sum != head.tensor_checksum)) {
    // Only this value is lost: its tensors have been read, so the stream is at the next frame.
    listener_.on_damaged(from_, head, "its checksum differs from the sender's");
    return;
  }
  FencedValue value;
  try {
    // Copies to the device, and receives of the device link, run on this stream.
    std::optional<SideStreams::Guard> guard;
    if (const auto device = device_of(taken.memory.tensors)) guard.emplace(streams_, *device);
    value.value = taken.layout->build(values, std::move(taken.memory.tensors));
    // The rank's thread takes the value on its own stream, which must wait for the copies.
    if (guard) value.fence = DeviceFence::record(value.value);
  } catch (const OutOfMemory& error) {
    listener_.on_refused(from_, head, error.what());
    return;
  } catch (const Error& error) {
    // The bytes do not describe a value: the peer or the connection is at fault. The other two
    // errors are this rank's own.
    listener_.on_damaged(from_, head, error.what());
    return;
  } catch (const c10::Error& error) {
    listener_.on_refused(from_, head, error.what_without_backtrace());
    return;
  }
  listener_.on_value(from_, head, std::move(value));
}

}  // namespace stagecraft::detail
