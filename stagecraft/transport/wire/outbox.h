#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stagecraft/base/deadline.h"
#include "stagecraft/transport/device/device_link.h"
#include "stagecraft/transport/device/side_streams.h"
#include "stagecraft/transport/wire/byte_transport.h"
#include "stagecraft/transport/wire/frame.h"
#include "stagecraft/transport/wire/send_queue.h"
#include "stagecraft/transport/wire/value_codec.h"

namespace stagecraft::detail {

/// The connection to a rank is gone.
class ConnectionLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What this rank sends to one other: the sending end of a stream of frames (frame.h). Sends go out
/// on the thread of the caller and never wait, but large values where that takes an engine long;
/// a thread of the outbox's own sees them through.
///
/// Thread-safe. Everything that sends throws ConnectionLost when that cannot succeed.
class Outbox {
 public:
  /// A value whose memory is still in use.
  class Sending {
   public:
    bool is_done() const { return left_.load(std::memory_order_acquire) == 0 || is_lost_.load(); }
    /// Whether it is done because the outbox was closed, or since it failed.
    bool is_lost() const { return is_lost_.load(); }
    /// Of one that is lost: what this rank's own device said; empty where it is not to blame.
    std::string failure() const {
      const std::lock_guard lock(failure_mutex_);
      return failure_;
    }

   private:
    friend class Outbox;
    std::atomic<std::size_t> left_{0};
    std::atomic<bool> is_lost_{false};
    mutable std::mutex failure_mutex_;
    std::string failure_;

    void set_failure(std::string failure) {
      const std::lock_guard lock(failure_mutex_);
      failure_ = std::move(failure);
    }
  };
  using SendingPtr = std::shared_ptr<Sending>;

  /// `on_sent` is called, by a thread of the outbox's, whenever a value's memory is free again;
  /// `on_failed` after it for a value that this rank could not send, with what was the matter.
  using OnFailed = std::function<void(const FrameHead& head, const std::string& failure)>;
  Outbox(ByteTransport& byte_transport, DeviceLink* link, Rank to, bool use_checksums,
         std::function<void()> on_sent, OnFailed on_failed);
  /// Closes it and waits for its thread.
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  /// Null where nothing of the value's memory is in use any more.
  /// What is on a device goes out as soon as the device has made it, and copied it where the host
  /// must; until then the outbox keeps it. So it does with what takes long to hand to the engine,
  /// on a thread that does nothing else.
  SendingPtr send_value(FrameHead head, EncodedValue value);
  void send(FrameHead head, std::string_view body = {});
  /// Answers kRelease.
  void release(const FrameHead& request);

  /// Says how this rank gets on; where it does not say (empty), something, unless something was
  /// said since the last call. And what is done is let go of.
  void tick(uint64_t epoch, std::string_view progress);
  /// Until everything has been handed to the engine; false at the deadline, and what has not been
  /// then never is.
  bool flush(Deadline deadline);
  /// Lets go of everything, sent or not; sends throw from now on. For a connection that is lost or
  /// about to be closed. `on_sent` is called for what was not sent, too.
  void close();

 private:
  struct Item {
    WorkPtr work;
    at::Tensor frame;  ///< to be used again
    SendingPtr value;
    std::optional<FrameHead> link_head = {};  ///< of what goes over the device link
  };

  void post_value(FrameHead head, const EncodedValue& value, const SendingPtr& sending);
  SendQueue& send_queue();
  void finish_part(const SendingPtr& value, bool is_sent);
  void post_frame(FrameHead& head, const std::vector<std::string_view>& body);
  void post(ByteTransport::Tag tag, const at::Tensor& bytes, at::Tensor frame, SendingPtr value);
  void keep(Item item);
  /// A frame that was sent. With the queue's mutex.
  void take_back(at::Tensor frame);
  uint32_t number_of(const Edge& edge, const std::string& layout, FrameHead& head);
  void require_open() const;
  void run();
  void finish(Item& item, bool is_sent);

  ByteTransport& byte_transport_;
  DeviceLink* const link_;
  const Rank to_;
  const bool use_checksums_;
  const std::function<void()> on_sent_;
  const OnFailed on_failed_;

  std::mutex sending_;  ///< held from the first to the last message of a frame
  uint64_t frames_ = 0;
  uint64_t frames_at_tick_ = 0;
  std::unordered_map<std::string, uint32_t> layouts_;  ///< by edge and layout
  std::deque<std::string> layouts_by_age_;
  uint32_t next_layout_ = 0;

  std::mutex queue_mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  WorkPtr current_;
  std::vector<at::Tensor> free_frames_;
  bool wanted_ = false;    ///< the thread shall look now
  uint64_t num_seen_ = 0;  ///< items that the thread has seen through
  uint64_t seen_at_tick_ = 0;
  std::atomic<bool> closed_{false};
  SideStreams copies_;                     ///< on which tensors come to the host
  SideStreams sends_;                      ///< on which the link sends
  std::unique_ptr<SendQueue> send_queue_;  ///< made for the first value that waits
  std::thread thread_;
};

}  // namespace stagecraft::detail
