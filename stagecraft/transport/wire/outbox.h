#pragma once

#include <algorithm>
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
#include "stagecraft/transport/wire/sending.h"
#include "stagecraft/transport/wire/value_codec.h"

namespace stagecraft::detail {

/// The connection to a peer is lost or closed.
class ConnectionLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The sending end of the stream of frames (frame.h) to one peer. Sends are posted on the calling
/// thread and do not block. A value that takes long to post (large, or still being computed by a
/// device) is posted by a separate thread (send_queue.h).
///
/// A communication library may be unable to say whether a send is done, other than by a wait. So
/// the outbox's own thread waits for posted sends and releases their memory. It is started by the
/// first value with a message of its own, and when many sends have accumulated: most peers only
/// exchange heartbeats. Their sends are done when the peer says that it has read them.
///
/// Thread-safe. Every call that sends throws ConnectionLost if the connection is lost or closed.
class Outbox {
 public:
  /// `on_sent` is called on a thread of the outbox whenever the memory of a value is released.
  /// `on_failed` is called after it for a value that this rank could not send, with the reason.
  using OnFailed = std::function<void(const FrameHead& head, const std::string& failure)>;
  Outbox(ByteTransport& byte_transport, DeviceLink* link, Rank to, bool use_checksums,
         std::function<void()> on_sent, OnFailed on_failed);
  /// Closes the outbox and joins its threads.
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  /// Sends a value. Returns null if the memory of the value is no longer in use.
  ///
  /// Tensors of a device are sent when the device has computed them and, without a device link,
  /// copied them to the host. The outbox keeps the value until then. A separate thread posts such
  /// values, and large ones if the library's `send` copies.
  SendingPtr send_value(FrameHead head, EncodedValue value);
  void send(FrameHead head, std::string_view body = {});
  /// Sends the frame if `condition` returns true. Returns what it returned. No other thread posts a
  /// frame between the call of `condition` and this frame.
  bool send_if(const std::function<bool()>& condition, const FrameHead& head);
  /// Answers kRelease: completes posted receives that the peer no longer needs.
  void release(const FrameHead& request);

  /// Sends a heartbeat with this rank's progress and the number of frames that it has read from the
  /// peer. If `progress` is empty, a heartbeat is sent only if nothing else was sent since the last
  /// tick. Also releases the memory of completed sends.
  void tick(uint64_t epoch, std::string_view progress, uint64_t frames_read);
  /// The peer has read this many frames.
  void on_read(uint64_t frames) { read_ = std::min<uint64_t>(frames, frames_); }
  /// Waits until all values are posted. False at the deadline; values that are not posted by then
  /// never are.
  bool flush(Deadline deadline);
  /// Releases everything, sent or not; later sends throw. For a connection that is lost or about to
  /// be closed. `on_sent` is called for unsent values, too.
  void close();

 private:
  struct Item {
    WorkPtr work;
    at::Tensor frame;  ///< its memory is reused
    SendingPtr value;
    std::optional<FrameHead> link_head = {};  ///< set for a send over the device link
    uint64_t frame_number = 0;                ///< of the frame that it belongs to
  };

  void post_value(FrameHead head, const EncodedValue& value, const SendingPtr& sending);
  SendQueue& send_queue();
  void finish_part(const SendingPtr& value, bool is_sent);
  void post_frame(FrameHead& head, const std::vector<std::string_view>& body);
  void post(ByteTransport::Tag tag, const at::Tensor& bytes, at::Tensor frame, SendingPtr value);
  void keep(Item item);
  /// Removes from the queue the items that the peer has read. REQUIRES queue_mutex_, and that the
  /// thread was not started.
  std::vector<Item> take_read();
  /// Takes back the memory of a frame that was sent. REQUIRES queue_mutex_.
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
  std::atomic<uint64_t> frames_{0};
  uint64_t frames_at_tick_ = 0;
  std::unordered_map<std::string, uint32_t> layouts_;  ///< by edge and layout
  std::deque<std::string> layouts_by_age_;
  uint32_t next_layout_ = 0;

  std::mutex queue_mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  WorkPtr current_;
  std::vector<at::Tensor> free_frames_;
  bool wanted_ = false;    ///< the thread is to wait for sends now
  uint64_t num_seen_ = 0;  ///< number of completed items
  uint64_t seen_at_tick_ = 0;
  std::atomic<uint64_t> read_{0};  ///< number of frames that the peer has read
  std::atomic<bool> closed_{false};
  SideStreams copies_;                     ///< copies to the host run on these
  SideStreams sends_;                      ///< sends of the device link run on these
  std::unique_ptr<SendQueue> send_queue_;  ///< created with the first value that must wait
  std::thread thread_;                     ///< started with queue_mutex_ held
};

}  // namespace stagecraft::detail
