#include "stagecraft/schedule/builders/interleaved.h"

#include <algorithm>

namespace stagecraft::builders {

// Rounds of uneven size do no harm. A rank passes on a chunk's last microbatch before it needs the
// next chunk's first one from the other end: for this a round must have at least p microbatches.
// The warm-up of the first round is enough for later rounds: for this the first must be the
// largest.
InterleavedOrder::InterleavedOrder(const Dims& dims) : l_(dims.l) {
  const int32_t rounds = std::max(1, dims.m / dims.p);
  const int32_t larger = dims.m % rounds;
  round_size_ = dims.m / rounds + (larger > 0 ? 1 : 0);
  steps_.reserve(static_cast<std::size_t>(dims.l) * dims.m);
  int32_t first = 0;
  for (int32_t round = 0; round < rounds; ++round) {
    const int32_t size = dims.m / rounds + (round < larger ? 1 : 0);
    for (int32_t chunk = 0; chunk < dims.l; ++chunk) {
      for (int32_t i = 0; i < size; ++i) steps_.push_back({chunk, first + i});
    }
    first += size;
  }
}

}  // namespace stagecraft::builders
