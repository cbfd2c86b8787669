#include "stagecraft/runtime/launch/graph_device.h"

namespace stagecraft::detail {

std::unique_ptr<GraphDevice> make_cuda_graph_device(c10::Device /*device*/) {
  return nullptr;
}

}  // namespace stagecraft::detail
