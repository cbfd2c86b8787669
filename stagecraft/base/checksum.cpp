#include "stagecraft/base/checksum.h"

#include <array>
#include <cstring>

namespace stagecraft::detail {
namespace {

constexpr uint64_t kOdd = 0x9E3779B97F4A7C15U;

uint64_t mix(uint64_t state, uint64_t word) {
  state = (state ^ word) * kOdd;
  return state ^ (state >> 32U);
}

uint64_t load(const std::byte* at, std::size_t size = sizeof(uint64_t)) {
  uint64_t word = 0;
  std::memcpy(&word, at, size);
  return word;
}

}  // namespace

uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed) {
  // Four independent lanes, because each multiplication waits for the previous one of its lane.
  std::array<uint64_t, 4> lanes = {seed, seed + 1, seed + 2, seed + 3};
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= sizeof(lanes); left -= sizeof(lanes), at += sizeof(lanes)) {
    for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = mix(lanes[i], load(at + 8 * i));
  }
  uint64_t sum = mix(seed, bytes.size());
  for (const uint64_t lane : lanes) sum = mix(sum, lane);
  for (; left >= 8; left -= 8, at += 8) sum = mix(sum, load(at));
  if (left > 0) sum = mix(sum, load(at, left));
  return sum;
}

}  // namespace stagecraft::detail
