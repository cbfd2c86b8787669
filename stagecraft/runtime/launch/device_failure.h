#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "stagecraft/base/index.h"
#include "stagecraft/runtime/launch/device_probe.h"

namespace stagecraft::detail {

/// The memory that a stage holds for microbatches between their forward and their backward.
struct InFlight {
  StageId stage;
  int32_t microbatches = 0;
  int64_t kept = 0;    ///< bytes that a microbatch keeps from its F on; 0: not known
  int64_t inputs = 0;  ///< bytes of the stage's inputs, which recompute keeps, too
  bool recomputes = false;
};

/// If `cause` is torch's error for a device without memory, an OutOfMemoryError with the bytes that
/// were asked and are free, and with what recompute and fewer microbatches in flight would save.
/// Otherwise null. `probe` may be null.
std::exception_ptr explain_out_of_memory(const std::exception_ptr& cause, DeviceProbe* probe,
                                         const std::vector<InFlight>& in_flight);

/// If the device reports an error, a DeviceError with the text of `cause` and the actions of this
/// process that may have caused it. Otherwise null. Does not wait for the device.
std::exception_ptr explain_device_error(const std::exception_ptr& cause, DeviceProbe& probe,
                                        c10::Device device);

/// Rethrows the exception that is being handled, as OutOfMemoryError or DeviceError if the device
/// has failed and the exception does not say so yet. `probe` may be null.
[[noreturn]] void rethrow_explained(DeviceProbe* probe, c10::Device device);

/// "2.0 GiB"; "an unknown number of bytes" for -1.
std::string bytes_or_unknown(int64_t bytes);

}  // namespace stagecraft::detail
