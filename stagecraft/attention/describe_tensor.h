#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace stagecraft::detail {

/// "float32[2, 8, 128, 64]" for messages; "nothing" for an undefined tensor.
std::string describe(const at::Tensor& tensor);

/// "[2, 8, 128, 64]".
std::string describe(at::IntArrayRef sizes);

}  // namespace stagecraft::detail
