#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

namespace stagecraft {

/// A non-negative index of one kind. Two kinds do not convert into each other or into integers, so
/// a StageId cannot be passed where a Rank is expected:
///
///   StageId s(3);
///   s.value();             // 3
///   Rank r = s;            // does not compile
template <typename Kind>
class Index {
 public:
  constexpr Index() = default;
  constexpr explicit Index(int32_t value) : value_(value) {}

  constexpr int32_t value() const { return value_; }
  /// The index as a place in a container.
  constexpr std::size_t position() const { return static_cast<std::size_t>(value_); }

  // NOLINTNEXTLINE(modernize-use-nullptr): it takes the 0 of the comparison for a pointer
  friend constexpr auto operator<=>(Index, Index) = default;
  constexpr Index& operator++() {
    ++value_;
    return *this;
  }
  friend constexpr Index operator+(Index index, int32_t n) { return Index(index.value_ + n); }
  friend constexpr Index operator-(Index index, int32_t n) { return Index(index.value_ - n); }
  friend std::ostream& operator<<(std::ostream& out, Index index) { return out << index.value_; }

 private:
  int32_t value_ = 0;
};

template <typename Kind>
std::string to_string(Index<Kind> index) {
  return std::to_string(index.value());
}

/// A member of the pipeline: a thread or a process that owns one or more stages.
using Rank = Index<struct RankKind>;
/// One part of the model, numbered in the order of the forward pass.
using StageId = Index<struct StageKind>;
/// A part of the batch of one step.
using MicrobatchId = Index<struct MicrobatchKind>;

}  // namespace stagecraft

template <typename Kind>
struct std::hash<stagecraft::Index<Kind>> {
  std::size_t operator()(stagecraft::Index<Kind> index) const noexcept {
    return std::hash<int32_t>{}(index.value());
  }
};
