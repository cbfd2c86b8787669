#include "stagecraft/viz/pack.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace stagecraft::viz {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void put(std::vector<unsigned char>& bytes, uint64_t bits, int count) {
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<unsigned char>(bits >> (8 * i)));
}

}  // namespace

std::string base64(std::span<const unsigned char> bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) group = group << 8U | (j < count ? bytes[i + j] : 0U);
    for (std::size_t j = 0; j < 4; ++j) {
      out += j <= count ? kDigits[group >> (18 - 6 * j) & 63U] : '=';
    }
  }
  return out;
}

std::string pack(std::span<const double> values) {
  bool whole = true;
  bool single = true;
  double most = 0;
  for (const double value : values) {
    whole = whole && value >= 0 && value <= UINT32_MAX && value == std::floor(value) &&
            !std::signbit(value);
    single = single && std::abs(value) <= 3e38 &&
             static_cast<double>(static_cast<float>(value)) == value;
    most = std::max(most, value);
  }
  std::vector<unsigned char> bytes;
  std::string name;
  if (whole) {
    const int size = most <= UINT8_MAX ? 1 : most <= UINT16_MAX ? 2 : 4;
    name = size == 1 ? "u8" : size == 2 ? "u16" : "u32";
    for (const double value : values) put(bytes, static_cast<uint64_t>(value), size);
  } else if (single) {
    name = "f32";
    for (const double value : values) {
      put(bytes, std::bit_cast<uint32_t>(static_cast<float>(value)), 4);
    }
  } else {
    name = "f64";
    for (const double value : values) put(bytes, std::bit_cast<uint64_t>(value), 8);
  }
  return '"' + name + ':' + base64(bytes) + '"';
}

}  // namespace stagecraft::viz
