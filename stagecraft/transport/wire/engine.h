#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/index.h"

namespace stagecraft::detail {

/// What the wire protocol needs of an engine such as gloo: messages of bytes between two ranks. All
/// calls may come from any thread.
class Engine {
 public:
  /// Messages of one tag from one rank to another arrive in the order in which they were sent, and
  /// fill receives in the order in which those were posted.
  using Tag = int32_t;

  /// A send or receive under way.
  class Work {
   public:
    Work() = default;
    virtual ~Work() = default;
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

    /// Until it is done (true) or interrupted (false). Throws when the connection is lost, but an
    /// engine may miss that for a message that was half-way through. By one thread at a time.
    virtual bool wait() = 0;
    /// Ends the wait under way, or else the next one; what was posted stays posted.
    virtual void interrupt() = 0;
  };
  using WorkPtr = std::shared_ptr<Work>;

  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  virtual Rank rank() const = 0;
  virtual int32_t num_ranks() const = 0;

  /// `bytes`: contiguous, on the CPU, kept by the work. Neither call waits; both throw when the
  /// connection is known to be lost.
  virtual WorkPtr send(Rank to, Tag tag, const at::Tensor& bytes) = 0;
  /// For a message of at most that size; a longer one is the end of the process.
  virtual WorkPtr receive(Rank from, Tag tag, const at::Tensor& bytes) = 0;

 protected:
  Engine() = default;
};

}  // namespace stagecraft::detail
