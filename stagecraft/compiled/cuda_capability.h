#pragma once

#include <string>

#include <c10/core/Device.h>

namespace stagecraft::detail {

/// "sm_90" for a CUDA device; empty if it cannot be found out. The CUDA runtime that torch has
/// loaded is asked, so nothing of CUDA is needed to build this.
std::string cuda_capability(c10::Device device);

}  // namespace stagecraft::detail
