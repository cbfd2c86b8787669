#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/index.h"
#include "stagecraft/transport/core/work.h"

namespace stagecraft::detail {

/// What the wire protocol needs of an engine such as gloo: messages of bytes between two ranks. All
/// calls may come from any thread.
class ByteTransport {
 public:
  /// Messages of one tag from one rank to another arrive in the order in which they were sent, and
  /// fill receives in the order in which those were posted.
  using Tag = int32_t;

  virtual ~ByteTransport() = default;
  ByteTransport(const ByteTransport&) = delete;
  ByteTransport& operator=(const ByteTransport&) = delete;

  virtual Rank rank() const = 0;
  virtual int32_t num_ranks() const = 0;

  /// `bytes`: contiguous, on the CPU, kept by the work. Neither call waits for another rank; both
  /// throw when the connection is known to be lost.
  virtual WorkPtr send(Rank to, Tag tag, const at::Tensor& bytes) = 0;
  /// For a message of at most that size; a longer one is the end of the process.
  virtual WorkPtr receive(Rank from, Tag tag, const at::Tensor& bytes) = 0;

  /// Whether messages come to whoever asks for them all the time much sooner than to a thread that
  /// has gone to sleep (Work::wait_busily).
  virtual bool prefers_polling() const { return false; }

  /// Whether `send` may take as long as copying a large message takes.
  virtual bool copies_in_send() const { return false; }

  /// How an engine that can tell says that a rank's process has ended, on a thread of its own.
  struct Watch {
    /// Whether that was to be expected.
    std::function<bool(Rank)> has_left = {};
    std::function<void(Rank)> on_ended = {};
  };
  /// Without functions: nothing is told any more once it returns.
  virtual void watch(Watch /*watch*/) {}
  /// The rank is lost or does not answer: what is under way with it will not come to its end.
  virtual void forget(Rank /*other*/) {}
  /// The world has failed, and its ranks may not all come to their end.
  virtual void set_failed() {}

 protected:
  ByteTransport() = default;
};

}  // namespace stagecraft::detail
