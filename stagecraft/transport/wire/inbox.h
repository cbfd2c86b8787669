#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "stagecraft/base/deadline.h"
#include "stagecraft/transport/core/pending.h"
#include "stagecraft/transport/device/device_fence.h"
#include "stagecraft/transport/device/side_streams.h"
#include "stagecraft/transport/wire/byte_transport.h"
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

  virtual void on_value(Rank from, const FrameHead& head, FencedValue value) = 0;
  /// The value of a frame arrived damaged; what comes after it may be whole.
  virtual void on_damaged(Rank from, const FrameHead& head, const std::string& what) = 0;
  /// This rank itself cannot take the value: it has no memory for it, or its device fails.
  virtual void on_refused(Rank from, const FrameHead& head, const std::string& what) = 0;
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
///
/// Waking a thread that waits for another thread takes tens of microseconds. So whoever waits for
/// something that this rank sends may read frames itself (`poll_inline`), which the inbox's thread
/// leaves to it for a while after somebody has waited. One of the two reads at a time; the thread
/// is asked to leave where the engine rewards that (ByteTransport::prefers_polling). Messages that
/// take long are the thread's business.
class Inbox {
 public:
  /// `link` may be null.
  Inbox(ByteTransport& byte_transport, DeviceLink* link, Rank from, InboxListener& listener);
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

  /// Reads, on the thread of the caller, until what it waits for is there or until it is called
  /// off; or returns at once. The caller goes on to wait in its own way.
  void poll_inline(const PendingPtr& awaited);
  /// Ends it, from any thread.
  void cancel_poll();

  IncomingLayouts& layouts() { return layouts_; }
  /// When something came last. Within a message that is still arriving: now, for as long as one of
  /// its size may take.
  Deadline::Clock::time_point last_heard() const;
  /// As if something had come now.
  void touch();

 private:
  struct Frame {
    at::Tensor bytes;
    WorkPtr work;
  };
  /// One that is being read: first its body, if that follows, then what the body announces.
  struct Message {
    Frame frame;
    FrameHead head;
    at::Tensor separate;  ///< the body, if it follows
    bool has_body = false;
    bool is_whole = true;
    IncomingLayouts::Taken value;
    std::deque<WorkPtr> awaited;

    std::string_view body() const;
    /// Of all of it, about.
    int64_t num_bytes() const;
  };

  enum class Reader { kThread, kCaller };

  void run();
  void end(const std::string& why);
  /// For the thread: until it may read.
  bool take_turn();
  void finish_turn();
  /// Has the thread leave, if it only waits and does so at once.
  void wait_for_turn(std::unique_lock<std::mutex>& lock);
  void ask_thread_to_leave();
  /// False when the inbox was stopped, the connection lost, or the caller called off.
  bool read_frame(Reader reader);
  bool read_message(Reader reader);
  bool begin_message(Reader reader);
  void begin_parts();
  void begin_value();
  void finish_message();
  void finish_value();
  void post_frames();
  /// Until it is done; false when the inbox was stopped, or the caller called off.
  bool await(const WorkPtr& work, Reader reader = Reader::kThread);

  ByteTransport& byte_transport_;
  DeviceLink* const link_;
  const Rank from_;
  InboxListener& listener_;
  IncomingLayouts layouts_;
  SideStreams streams_;  ///< on which tensors arrive
  std::deque<Frame> frames_;
  at::Tensor spare_;  ///< of a frame that was read
  std::optional<Message> message_;
  uint64_t next_frame_ = 0;
  bool has_ended_ = false;  ///< goodbye was said
  bool is_broken_ = false;  ///< nothing can be read any more

  std::atomic<int64_t> last_heard_{0};
  std::atomic<int64_t> arriving_bytes_{0};  ///< of the message that is; 0: none
  std::mutex mutex_;
  WorkPtr current_;
  Reader current_reader_ = Reader::kThread;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> is_poll_cancelled_{false};
  std::atomic<bool> is_wanted_{false};  ///< somebody waits for the thread to leave

  std::mutex turn_mutex_;
  std::condition_variable turn_changed_;
  bool is_taken_ = false;      ///< somebody reads
  uint64_t inline_polls_ = 0;  ///< how often somebody came to
  uint64_t seen_inline_polls_ = 0;
  /// What the last who came waits for, if the thread was reading.
  std::weak_ptr<Pending> left_waiting_;
  std::thread thread_;
};

}  // namespace stagecraft::detail
