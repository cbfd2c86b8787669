#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace stagecraft::detail {

/// Hands tensors of a device from a thread with one current stream to a thread with another,
/// without waiting for the device.
class DeviceFence {
 public:
  /// Marks, on the current stream of every device that a tensor of the tree is on, what has been
  /// submitted so far. Null where no tensor is on a device: then there is nothing to do.
  ///
  /// ArgumentError for a tensor that carries history, and for trees that nest too deep.
  static std::unique_ptr<DeviceFence> record(const c10::IValue& tree);

  /// Called by the thread that takes over the same tree: its current streams wait for what was
  /// marked, and the tensors' memory is not given to others before those streams are done with it.
  void join(const c10::IValue& tree) const;

 private:
  struct Mark {
    c10::Stream stream;
    c10::Event event;
  };
  std::vector<Mark> marks_;  ///< one a device
};

/// A value on its way from a thread to another.
struct FencedValue {
  c10::IValue value;
  std::unique_ptr<DeviceFence> fence;  ///< null: nothing is to be waited for
};

}  // namespace stagecraft::detail
