#pragma once

#include <string>

#include <c10/core/Device.h>

namespace stagecraft::detail {

/// "sm_90" for a CUDA device; empty if it is not known. Calls the CUDA runtime that torch has
/// loaded, so building needs no CUDA.
std::string cuda_capability(c10::Device device);

}  // namespace stagecraft::detail
