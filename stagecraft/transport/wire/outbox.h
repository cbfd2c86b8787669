#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "stagecraft/transport/wire/engine.h"
#include "stagecraft/transport/wire/frame.h"
#include "stagecraft/transport/wire/value_codec.h"

namespace stagecraft::detail {

/// The connection to a rank is gone.
class ConnectionLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What this rank sends to one other: the sending end of a stream of frames (frame.h). Sends go out
/// on the thread of the caller and never wait; a thread of the outbox's own sees them through.
///
/// Thread-safe. Everything that sends throws ConnectionLost when that cannot succeed.
class Outbox {
 public:
  /// A value whose memory is still in use.
  class Sending {
   public:
    bool is_done() const { return left_.load(std::memory_order_acquire) == 0; }
    /// Whether it is done because the outbox was closed.
    bool is_lost() const { return is_lost_.load(); }

   private:
    friend class Outbox;
    std::atomic<std::size_t> left_{0};
    std::atomic<bool> is_lost_{false};
  };
  using SendingPtr = std::shared_ptr<Sending>;

  /// `on_sent` is called, by the outbox's thread, whenever a value's memory is free again.
  Outbox(Engine& engine, Rank to, bool use_checksums, std::function<void()> on_sent);
  /// Closes it and waits for its thread.
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  /// Null where nothing of the value's memory is in use any more.
  SendingPtr send_value(FrameHead head, const EncodedValue& value);
  void send(FrameHead head, std::string_view body = {});
  /// Answers kRelease.
  void release(const FrameHead& request);

  /// Something to say, unless something was said since the last call; and what is done is let go
  /// of.
  void tick(uint64_t epoch);
  /// Lets go of everything, sent or not; sends throw from now on. For a connection that is lost or
  /// about to be closed. `on_sent` is called for what was not sent, too.
  void close();

 private:
  struct Item {
    Engine::WorkPtr work;
    at::Tensor frame;  ///< to be used again
    SendingPtr value;
  };

  void post_frame(FrameHead& head, const std::vector<std::string_view>& body);
  void post(Engine::Tag tag, const at::Tensor& bytes, at::Tensor frame, SendingPtr value);
  uint32_t number_of(const Edge& edge, const std::string& layout, FrameHead& head);
  void require_open() const;
  void run();
  void finish(Item& item, bool is_sent);

  Engine& engine_;
  const Rank to_;
  const bool use_checksums_;
  const std::function<void()> on_sent_;

  std::mutex sending_;  ///< held from the first to the last message of a frame
  uint64_t frames_ = 0;
  uint64_t frames_at_tick_ = 0;
  std::unordered_map<std::string, uint32_t> layouts_;  ///< by edge and layout
  std::deque<std::string> layouts_by_age_;
  uint32_t next_layout_ = 0;

  std::mutex queue_mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  Engine::WorkPtr current_;
  std::vector<at::Tensor> free_frames_;
  bool wanted_ = false;  ///< the thread shall look now
  std::atomic<bool> closed_{false};
  std::thread thread_;
};

}  // namespace stagecraft::detail
