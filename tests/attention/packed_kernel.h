#pragma once

#include <cstdint>
#include <optional>

// torch has its fused kernel for packed sequences on CUDA alone. This program registers one for the
// CPU that computes segment by segment in float64, so that the code around it runs here.

namespace stagecraft::reference {

/// What the kernel was last called with.
struct PackedCall {
  int64_t calls = 0;
  int64_t backward_calls = 0;
  int64_t segments = 0;
  int64_t heads = 0;
  int64_t size = 0;
  bool causal = false;
  std::optional<int64_t> left;
  std::optional<int64_t> right;
};

PackedCall& packed_call();

}  // namespace stagecraft::reference
