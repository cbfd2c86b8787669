#include "stagecraft/compiled/cuda_capability.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace stagecraft::detail {

std::string cuda_capability(c10::Device device) {
  // Values of the enumeration cudaDeviceAttr, which do not change.
  constexpr int kMajor = 75;
  constexpr int kMinor = 76;
  using GetAttribute = int (*)(int* value, int attribute, int device);
  static const auto get =
      reinterpret_cast<GetAttribute>(dlsym(RTLD_DEFAULT, "cudaDeviceGetAttribute"));
  if (get == nullptr || !device.is_cuda()) return {};
  if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  int major = 0;
  int minor = 0;
  if (get(&major, kMajor, device.index()) != 0 || get(&minor, kMinor, device.index()) != 0) {
    return {};
  }
  return fmt::format("sm_{}{}", major, minor);
}

}  // namespace stagecraft::detail
