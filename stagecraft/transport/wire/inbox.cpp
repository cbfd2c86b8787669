#include "stagecraft/transport/wire/inbox.h"

#include <cstring>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/log.h"
#include "stagecraft/transport/wire/checksum.h"
#include "stagecraft/transport/wire/name_thread.h"

namespace stagecraft::detail {
namespace {

using Clock = Deadline::Clock;

std::string_view text_of(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()),
          static_cast<std::size_t>(bytes.numel())};
}

// Thrown within a message.
class Stopped {};

}  // namespace

Inbox::Inbox(Engine& engine, Rank from, InboxListener& listener)
    : engine_(engine), from_(from), listener_(listener), layouts_(engine, from) {
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
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  if (current_) current_->interrupt();
}

Clock::time_point Inbox::last_heard() const {
  if (is_arriving_) return Clock::now();
  return Clock::time_point(Clock::duration(last_heard_.load()));
}

void Inbox::touch() {
  last_heard_ = Clock::now().time_since_epoch().count();
}

void Inbox::run() {
  name_thread("sc in", from_);
  try {
    for (int i = 0; i < kPostedFrames; ++i) {
      post_frame(at::empty({static_cast<int64_t>(kFrameBytes)}, at::kByte));
    }
    while (read_frame()) {
    }
  } catch (const Stopped&) {
  } catch (const Error& error) {
    end(fmt::format("what it sends makes no sense: {}", error.what()));
  } catch (const std::exception& error) {
    log(LogLevel::kDebug, fmt::format("connection to rank {}: {}", from_.value(), error.what()));
    end("its process has ended or cannot be reached");
  }
}

void Inbox::end(const std::string& why) {
  if (stopped_) return;
  if (has_ended_) {
    listener_.on_closed(from_);
  } else {
    listener_.on_lost(from_, why);
  }
}

void Inbox::post_frame(at::Tensor bytes) {
  auto work = engine_.receive(from_, kFrameTag, bytes);
  frames_.push_back({std::move(bytes), std::move(work)});
}

bool Inbox::await(const Engine::WorkPtr& work) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return false;
    current_ = work;
  }
  bool is_done = false;
  while (!is_done && !stopped_) is_done = work->wait();
  const std::lock_guard lock(mutex_);
  current_.reset();
  return is_done;
}

bool Inbox::read_frame() {
  const Frame frame = std::move(frames_.front());
  frames_.pop_front();
  if (!await(frame.work)) return false;
  touch();
  const FrameHead head = read_head(text_of(frame.bytes), next_frame_++);
  at::Tensor separate;
  std::string_view body;
  if (head.body_follows != 0) {
    separate = at::empty({static_cast<int64_t>(head.body_bytes)}, at::kByte);
    is_arriving_ = true;
    if (!await(engine_.receive(from_, kBodyTag, separate))) return false;
    is_arriving_ = false;
    touch();
    body = text_of(separate);
  } else {
    body = text_of(frame.bytes).substr(sizeof(head), head.body_bytes);
  }
  const bool is_whole = head.has_checksum == 0 || checksum(as_bytes(body)) == head.body_checksum;
  // Only a value that has nothing in it which later frames rely on can be left out.
  const bool can_be_left_out = head.kind == FrameKind::kData && head.layout_bytes == 0;
  if (!is_whole && !can_be_left_out) throw MetadataError("a frame is damaged on its way");
  if (head.kind == FrameKind::kData) {
    read_value(head, body, is_whole);
  } else if (head.kind == FrameKind::kReleased) {
    for (const auto& work : layouts_.take_back(head)) {
      if (!await(work)) return false;
    }
  } else {
    has_ended_ = has_ended_ || head.kind == FrameKind::kGoodbye;
    listener_.on_control(from_, head, body);
  }
  post_frame(frame.bytes);
  return true;
}

void Inbox::read_value(const FrameHead& head, std::string_view body, bool is_whole) {
  if (head.layout_bytes > 0) {
    layouts_.learn(head.layout, Edge::of(head.transfer()), body.substr(0, head.layout_bytes));
  }
  auto taken = layouts_.take(head);
  if (taken.release) listener_.on_answer(from_, *taken.release);
  for (const auto& release : layouts_.forget_below(head.forget)) {
    listener_.on_answer(from_, release);
  }

  // Behind the numbers and texts are the small tensors, to the end.
  const auto& sizes = taken.layout->tensor_bytes();
  const auto is_small = small_tensors(sizes);
  std::vector<at::Tensor> bytes;
  for (const auto& tensor : taken.memory.tensors) {
    if (tensor.bytes().defined()) bytes.push_back(tensor.bytes());
  }
  std::size_t small_bytes = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) small_bytes += is_small[i] ? sizes[i] : 0;
  require<MetadataError>(head.body_bytes - head.layout_bytes >= small_bytes,
                         "a frame lacks {} bytes of tensors", small_bytes);
  std::string_view values = body.substr(head.layout_bytes);
  std::string_view small = values.substr(values.size() - small_bytes);
  values.remove_suffix(small_bytes);
  is_arriving_ = !taken.memory.works.empty();
  for (const auto& work : taken.memory.works) {
    if (!await(work)) throw Stopped();
    touch();
  }
  is_arriving_ = false;

  uint64_t sum = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (is_small[i]) {
      std::memcpy(bytes[i].mutable_data_ptr(), small.data(), sizes[i]);
      small.remove_prefix(sizes[i]);
    } else if (head.has_checksum != 0) {
      sum = checksum(as_bytes(text_of(bytes[i])), sum);
    }
  }
  if (!is_whole || (head.has_checksum != 0 && sum != head.tensor_checksum)) {
    listener_.on_damaged(from_, head, "its checksum is not that with which it was sent");
    return;
  }
  c10::IValue value;
  try {
    value = taken.layout->build(values, std::move(taken.memory.tensors));
  } catch (const Error& error) {
    listener_.on_damaged(from_, head, error.what());
    return;
  }
  listener_.on_value(from_, head, std::move(value));
}

}  // namespace stagecraft::detail
