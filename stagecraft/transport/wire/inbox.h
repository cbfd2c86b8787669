#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "stagecraft/base/deadline.h"
#include "stagecraft/transport/wire/engine.h"
#include "stagecraft/transport/wire/frame.h"
#include "stagecraft/transport/wire/incoming_layouts.h"

namespace stagecraft::detail {

/// Who hears what an inbox has received; called by the inbox's thread, in the order of the frames.
class InboxListener {
 public:
  InboxListener() = default;
  virtual ~InboxListener() = default;
  InboxListener(const InboxListener&) = delete;
  InboxListener& operator=(const InboxListener&) = delete;

  virtual void on_value(Rank from, const FrameHead& head, c10::IValue value) = 0;
  /// The value of a frame arrived damaged; what comes after it may be whole.
  virtual void on_damaged(Rank from, const FrameHead& head, const std::string& what) = 0;
  virtual void on_control(Rank from, const FrameHead& head, std::string_view body) = 0;
  /// To be sent to `to`.
  virtual void on_answer(Rank to, const FrameHead& head) = 0;
  /// Nothing comes any more: the connection was lost, or made no sense.
  virtual void on_lost(Rank from, const std::string& why) = 0;
  /// Nothing comes any more, as the rank has said goodbye.
  virtual void on_closed(Rank from) = 0;
};

/// What one other rank sends to this one: the receiving end of a stream of frames (frame.h), with a
/// thread of its own.
class Inbox {
 public:
  Inbox(Engine& engine, Rank from, InboxListener& listener);
  /// Stops and waits for the thread.
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  /// Begins to read.
  void start();
  /// Ends reading, also within a message.
  void stop();
  /// Until the thread has ended.
  void join();

  IncomingLayouts& layouts() { return layouts_; }
  /// When something came last. Within a value that is still arriving: now.
  Deadline::Clock::time_point last_heard() const;
  /// As if something had come now.
  void touch();

 private:
  struct Frame {
    at::Tensor bytes;
    Engine::WorkPtr work;
  };

  void run();
  void end(const std::string& why);
  bool read_frame();
  void read_value(const FrameHead& head, std::string_view body, bool is_whole);
  void post_frame(at::Tensor bytes);
  /// Until it is done; false when the inbox was stopped.
  bool await(const Engine::WorkPtr& work);

  Engine& engine_;
  const Rank from_;
  InboxListener& listener_;
  IncomingLayouts layouts_;
  std::deque<Frame> frames_;
  uint64_t next_frame_ = 0;
  bool has_ended_ = false;  ///< goodbye was said

  std::atomic<int64_t> last_heard_{0};
  std::atomic<bool> is_arriving_{false};
  std::mutex mutex_;
  Engine::WorkPtr current_;
  std::atomic<bool> stopped_{false};
  std::thread thread_;
};

}  // namespace stagecraft::detail
