#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "stagecraft/base/error.h"

namespace stagecraft::detail {

/// Appends numbers and texts to a string of bytes. Both ends of a connection have the same byte
/// order: the handshake compares it.
class ByteWriter {
 public:
  template <typename T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void put_text(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    out_ += text;
  }
  void put_raw(const void* at, std::size_t size) {
    out_.append(static_cast<const char*>(at), size);
  }

  const std::string& bytes() const { return out_; }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

/// Reads what a ByteWriter has written. MetadataError if there are too few bytes. Returned texts
/// refer to the bytes of the reader.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : left_(bytes) {}

  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view get_text() { return take(get<uint32_t>()); }
  std::string_view take(std::size_t size) {
    if (size > left_.size()) {
      throw MetadataError("a message is too short: expected " + std::to_string(size) +
                          " bytes, got " + std::to_string(left_.size()));
    }
    const auto taken = left_.substr(0, size);
    left_.remove_prefix(size);
    return taken;
  }
  /// Reads the number of elements that follow, each of at least one byte. MetadataError if they
  /// cannot fit.
  std::size_t get_count() {
    const auto count = get<uint32_t>();
    if (count > left_.size())
      throw MetadataError("a message announces more values than it has bytes");
    return count;
  }

  std::size_t left() const { return left_.size(); }

 private:
  std::string_view left_;
};

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace stagecraft::detail
