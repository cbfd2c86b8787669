#pragma once

#include <cstdint>

namespace stagecraft::bench {

/// The most bytes that were allocated by `new` at a time since the last reset. A program that calls
/// this counts every allocation.
int64_t heap_peak();
/// Starts over from what is allocated now, and returns that.
int64_t reset_heap_peak();

}  // namespace stagecraft::bench
