#pragma once

#include <cstdint>
#include <span>

namespace stagecraft::detail {

/// Whether the elements of a tensor fill their memory without gaps, each in a place of its own, in
/// whatever order of dimensions. The product of the sizes fits.
bool is_dense(std::span<const int64_t> sizes, std::span<const int64_t> strides);

}  // namespace stagecraft::detail
