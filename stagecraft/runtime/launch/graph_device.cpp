#include "stagecraft/runtime/launch/graph_device.h"

#include <atomic>

#include "stagecraft/base/error.h"

namespace stagecraft::detail {

namespace {

std::atomic<GraphDeviceMaker> replaced_maker = nullptr;

}  // namespace

std::unique_ptr<DeviceMarks> GraphDevice::make_marks(std::size_t /*limit*/) {
  return nullptr;
}

at::Tensor GraphDevice::sequence_seeds(std::size_t /*first*/, std::size_t /*count*/) {
  throw Error("this device has no seeds that a graph can read");
}

std::unique_ptr<GraphDevice> find_graph_device(c10::Device device) {
  if (const GraphDeviceMaker maker = replaced_maker.load()) return maker(device);
  return device.is_cuda() ? make_cuda_graph_device(device) : nullptr;
}

void set_graph_device_maker(GraphDeviceMaker maker) {
  replaced_maker.store(maker);
}

}  // namespace stagecraft::detail
