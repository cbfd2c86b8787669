#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/index.h"
#include "stagecraft/transport/core/work.h"

namespace stagecraft::detail {

/// The interface of the wire protocol to a communication library such as gloo: messages of bytes
/// between two ranks. All calls may come from any thread.
class ByteTransport {
 public:
  /// Messages of one tag from rank to rank arrive in the order of their sends, and fill receives in
  /// the order in which those were posted.
  using Tag = int32_t;

  virtual ~ByteTransport() = default;
  ByteTransport(const ByteTransport&) = delete;
  ByteTransport& operator=(const ByteTransport&) = delete;

  virtual Rank rank() const = 0;
  virtual int32_t num_ranks() const = 0;

  /// Posts a send. `bytes`: contiguous, on the CPU; the work keeps them. Neither call waits for a
  /// peer; both throw if the connection is known to be lost.
  virtual WorkPtr send(Rank to, Tag tag, const at::Tensor& bytes) = 0;
  /// Posts a receive of a message of at most that size. A longer message ends the process.
  virtual WorkPtr receive(Rank from, Tag tag, const at::Tensor& bytes) = 0;

  /// Whether a thread that polls (Work::wait_busily) gets a message much sooner than a thread that
  /// sleeps.
  virtual bool prefers_polling() const { return false; }

  /// Whether `send` copies a large message before it returns.
  virtual bool copies_in_send() const { return false; }

  /// Callbacks of libraries that can detect the end of a process. Called on a separate thread.
  struct Watch {
    /// Whether the rank has left, so that its end is expected.
    std::function<bool(Rank)> has_left = {};
    std::function<void(Rank)> on_ended = {};
  };
  /// Sets the callbacks. Without functions, no call is made after this returns.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): libraries that can tell keep it.
  virtual void watch(Watch /*watch*/) {}
  /// Declares that the rank is lost or does not answer: transfers with it will not complete.
  virtual void forget(Rank /*other*/) {}
  /// Declares that the world has failed: some ranks may never finish.
  virtual void set_failed() {}

 protected:
  ByteTransport() = default;
};

}  // namespace stagecraft::detail
