#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace stagecraft::detail {

/// Hands device tensors from one thread to a thread with different current streams, without waiting
/// for the device.
class DeviceFence {
 public:
  /// Records an event on the current stream of every device that has a tensor of the tree. Null if
  /// no tensor is on a device.
  ///
  /// ArgumentError for a tensor with autograd history, and for a tree that is nested too deeply.
  static std::unique_ptr<DeviceFence> record(const c10::IValue& tree);

  /// Called by the thread that receives the tree. Its current streams wait for the events, and the
  /// tensors' memory is not reused before those streams are done.
  void join(const c10::IValue& tree) const;

 private:
  struct Mark {
    c10::Stream stream;
    c10::Event event;
  };
  std::vector<Mark> marks_;  ///< one for each stream
};

/// A value that is handed from thread to thread.
struct FencedValue {
  c10::IValue value;
  std::unique_ptr<DeviceFence> fence;  ///< null: no stream must wait
};

}  // namespace stagecraft::detail
