#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "stagecraft/runtime/launch/device_probe.h"
#include "stagecraft/runtime/launch/graph_cache.h"
#include "stagecraft/runtime/launch/graph_device.h"
#include "stagecraft/runtime/pipeline_options.h"
#include "stagecraft/train/adamw.h"

namespace stagecraft::detail {

/// Clips and updates all parameters on their device, without waiting for it: the norm of the
/// gradients, the factor of the clipping and the learning rate stay there. If the norm is not
/// finite, nothing is updated. The second update with the same gradients (the same memory) is
/// captured as a graph, which is replayed from then on.
class DeviceUpdate {
 public:
  /// Null unless all trained parameters are on one device, other than the CPU. `optimizer` must
  /// outlive the result. `clip` 0: no clipping.
  static std::unique_ptr<DeviceUpdate> make(AdamW& optimizer, double clip, GraphMode graphs);

  DeviceUpdate(AdamW& optimizer, double clip, c10::Device device,
               std::unique_ptr<DeviceProbe> probe, std::unique_ptr<GraphDevice> graphs);
  ~DeviceUpdate();

  /// Launches an update. Returns the norm of the gradients before clipping, one element on the
  /// device, valid until the next update.
  at::Tensor run(double learning_rate);

  /// Rethrows the exception that is being handled, as OutOfMemoryError or DeviceError if the device
  /// has failed.
  [[noreturn]] void rethrow_explained();

  /// Updates that were replayed.
  int64_t num_replayed() const { return replayed_; }

 private:
  using Key = std::vector<const void*>;
  struct Captured {
    at::Tensor norm;
    std::vector<at::Tensor> grads;  // so that no other tensor gets their memory
    std::unique_ptr<DeviceGraph> graph;
  };

  Key key() const;
  at::Tensor compute();
  Captured capture();

  AdamW& optimizer_;
  double clip_;
  c10::Device device_;
  std::unique_ptr<DeviceProbe> probe_;
  std::unique_ptr<GraphDevice> graph_device_;  // null: updates are run
  at::Tensor learning_rate_;                   // float, one element
  GraphCache<Key, bool> seen_;
  GraphCache<Key, Captured> graphs_;
  int64_t replayed_ = 0;
};

}  // namespace stagecraft::detail
