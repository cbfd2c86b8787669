#pragma once

#include <cstdint>
#include <span>

namespace stagecraft::detail {

/// Whether the elements of a tensor fill its memory without gaps and overlaps, in any order of
/// dimensions. REQUIRES sizes whose product fits into 64 bits.
bool is_dense(std::span<const int64_t> sizes, std::span<const int64_t> strides);

}  // namespace stagecraft::detail
