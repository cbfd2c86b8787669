#include "stagecraft/base/sha256.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace stagecraft::detail {
namespace {

constexpr std::size_t kBlock = 64;
using Sha256State = std::array<uint32_t, 8>;
__extension__ using Wide = unsigned __int128;

// The first 32 fractional bits of the square (or cube) roots of the first primes.
template <std::size_t N>
std::array<uint32_t, N> root_bits(bool is_cube) {
  std::array<uint32_t, N> bits{};
  std::size_t found = 0;
  for (uint32_t n = 2; found < N; ++n) {
    bool is_prime = true;
    for (uint32_t d = 2; d * d <= n; ++d) is_prime = is_prime && n % d != 0;
    if (!is_prime) continue;
    // Whole numbers only, so that no rounding can matter: the largest r with (r / 2^32)^k <= n.
    uint64_t low = 0;
    uint64_t high = uint64_t{1} << 37U;
    while (high - low > 1) {
      const uint64_t middle = (low + high) / 2;
      const Wide square = Wide{middle} * middle;
      const bool fits = is_cube ? square * middle <= Wide{n} << 96U : square <= Wide{n} << 64U;
      (fits ? low : high) = middle;
    }
    bits[found++] = static_cast<uint32_t>(low);
  }
  return bits;
}

void add_block(Sha256State& state, std::string_view block) {
  static const auto constants = root_bits<64>(/*is_cube=*/true);
  std::array<uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t j = 0; j < 4; ++j) {
      w[i] = (w[i] << 8U) | static_cast<uint8_t>(block[4 * i + j]);
    }
  }
  for (std::size_t i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15];
    const uint32_t b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3U)) +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10U));
  }
  Sha256State s = state;
  for (std::size_t i = 0; i < 64; ++i) {
    const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    const uint32_t t1 = s[7] + (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) +
                        choice + constants[i] + w[i];
    const uint32_t t2 = (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) + majority;
    s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
  }
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += s[i];
}

}  // namespace

std::string sha256(std::string_view message) {
  Sha256State state = root_bits<8>(/*is_cube=*/false);
  std::string padded(message);
  padded += '\x80';
  while (padded.size() % kBlock != kBlock - 8) padded += '\0';
  const uint64_t bits = uint64_t{message.size()} * 8;
  for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(bits >> shift);
  for (std::size_t i = 0; i < padded.size(); i += kBlock) {
    add_block(state, std::string_view(padded).substr(i, kBlock));
  }
  std::string digest;
  for (const uint32_t word : state) {
    for (int shift = 24; shift >= 0; shift -= 8) digest += static_cast<char>(word >> shift);
  }
  return digest;
}

std::string sign(std::string_view key, std::string_view message) {
  std::string block(key.size() > kBlock ? sha256(key) : std::string(key));
  block.resize(kBlock, '\0');
  std::string inner = block;
  std::string outer = block;
  for (char& byte : inner) byte = static_cast<char>(byte ^ 0x36);
  for (char& byte : outer) byte = static_cast<char>(byte ^ 0x5c);
  return sha256(outer + sha256(inner.append(message)));
}

}  // namespace stagecraft::detail
