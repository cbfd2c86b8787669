#include "benchmarks/heap.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include <malloc.h>

namespace {

std::atomic<int64_t> live{0};
std::atomic<int64_t> peak{0};

void* count(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const int64_t now = live += static_cast<int64_t>(malloc_usable_size(memory));
  if (now > peak) peak = now;
  return memory;
}

void release(void* memory) {
  if (memory == nullptr) return;
  live -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

// All other forms of new and delete call these.
void* operator new(std::size_t size) {
  return count(std::malloc(std::max<std::size_t>(size, 1)));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  return count(std::aligned_alloc(align, (size + align - 1) / align * align));
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}

namespace stagecraft::bench {

int64_t heap_peak() {
  return peak;
}

int64_t reset_heap_peak() {
  peak = live.load();
  return live;
}

}  // namespace stagecraft::bench
