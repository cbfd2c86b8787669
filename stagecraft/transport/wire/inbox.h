#pragma once

#include <atomic>
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
#include "stagecraft/transport/wire/reader_turn.h"

namespace stagecraft::detail {

/// Receives the events of an inbox, on the thread that reads frames, in the order of the frames.
class InboxListener {
 public:
  InboxListener() = default;
  virtual ~InboxListener() = default;
  InboxListener(const InboxListener&) = delete;
  InboxListener& operator=(const InboxListener&) = delete;

  virtual void on_value(Rank from, const FrameHead& head, FencedValue value) = 0;
  /// The value of a frame was damaged in transit. Later frames may be intact.
  virtual void on_damaged(Rank from, const FrameHead& head, const std::string& what) = 0;
  /// This rank cannot receive the value: it is out of memory, or its device fails.
  virtual void on_refused(Rank from, const FrameHead& head, const std::string& what) = 0;
  virtual void on_control(Rank from, const FrameHead& head, std::string_view body) = 0;
  /// `head` is to be sent to `to`.
  virtual void on_answer(Rank to, const FrameHead& head) = 0;
  /// The stream has ended: the connection was lost, or an invalid message came.
  virtual void on_lost(Rank from, const std::string& why) = 0;
  /// The stream has ended after the peer's goodbye.
  virtual void on_closed(Rank from) = 0;
};

/// The receiving end of the stream of frames (frame.h) from one peer, with a thread that reads it.
///
/// Waking a thread that then wakes a second one takes tens of microseconds. A rank's thread that
/// waits for a value of this peer therefore reads frames itself (`poll_inline`). Only one of the
/// two threads reads at a time (reader_turn.h). If the communication library prefers polling
/// (ByteTransport::prefers_polling), the waiting thread asks the inbox's thread to stop reading;
/// otherwise the inbox's thread wakes as fast as the waiting one would.
class Inbox {
 public:
  /// `link` may be null.
  Inbox(ByteTransport& byte_transport, DeviceLink* link, Rank from, InboxListener& listener);
  /// Stops the thread and joins it.
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  /// Starts the thread.
  void start();
  /// Ends reading, even inside a message.
  void stop();
  /// Waits until the thread has ended.
  void join();

  /// Reads frames on the calling thread until `awaited` is done or `cancel_poll` is called. Returns
  /// at once if the inbox's thread keeps reading. The caller then waits in its usual way.
  void poll_inline(const PendingPtr& awaited);
  /// Ends `poll_inline`, from any thread.
  void cancel_poll();

  IncomingLayouts& layouts() { return layouts_; }
  /// When the peer's last message arrived. While a message arrives: now, for as long as a message
  /// of its size may take.
  Deadline::Clock::time_point last_heard() const;
  /// The number of frames that were read completely, with their bodies and tensors.
  uint64_t num_read() const { return num_read_; }
  /// Sets last_heard to now.
  void touch();

 private:
  struct Frame {
    at::Tensor bytes;
    WorkPtr work;
  };
  /// The message that is being read: first its body, if that follows separately, then the tensors
  /// that the body announces.
  struct Message {
    Frame frame;
    FrameHead head;
    at::Tensor separate;  ///< the body, if it follows separately
    bool has_body = false;
    bool is_whole = true;
    IncomingLayouts::Taken value;
    std::deque<WorkPtr> awaited;

    std::string_view body() const;
    /// The approximate size of the whole message.
    int64_t num_bytes() const;
  };

  enum class Reader { kThread, kCaller };

  void run();
  void end(const std::string& why);
  /// Makes the inbox's thread release its turn, if it only waits for a message.
  void ask_thread_to_leave();
  /// Reads one frame. False if the inbox was stopped, the connection was lost, or the reader must
  /// stop.
  bool read_frame(Reader reader);
  bool read_message(Reader reader);
  bool begin_message(Reader reader);
  void begin_parts();
  void begin_value();
  void finish_message();
  void finish_value();
  void post_frames();
  /// Waits until `work` is done. False if the inbox was stopped or the reader must stop.
  bool await(const WorkPtr& work, Reader reader = Reader::kThread);

  ByteTransport& byte_transport_;
  DeviceLink* const link_;
  const Rank from_;
  InboxListener& listener_;
  IncomingLayouts layouts_;
  SideStreams streams_;  ///< tensors arrive on these
  std::deque<Frame> frames_;
  at::Tensor spare_;  ///< memory of a frame that was read
  std::optional<Message> message_;
  uint64_t next_frame_ = 0;
  bool has_ended_ = false;  ///< the peer has said goodbye

  std::atomic<uint64_t> num_read_{0};
  std::atomic<int64_t> last_heard_{0};
  std::atomic<int64_t> arriving_bytes_{0};  ///< size of the arriving message; 0: none
  std::mutex mutex_;
  WorkPtr current_;
  Reader current_reader_ = Reader::kThread;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> is_poll_cancelled_{false};
  std::atomic<bool> is_wanted_{false};  ///< a rank's thread wants to read

  ReaderTurn turn_;
  std::thread thread_;
};

}  // namespace stagecraft::detail
