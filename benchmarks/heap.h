#pragma once

#include <cstdint>

namespace stagecraft::bench {

/// The most bytes that were allocated by `new` at the same time since the last reset. A program
/// that calls this counts every allocation.
int64_t heap_peak();
/// Resets the peak to the bytes that are allocated now, and returns them.
int64_t reset_heap_peak();

}  // namespace stagecraft::bench
