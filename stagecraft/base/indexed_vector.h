#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "stagecraft/base/assert.h"

namespace stagecraft {

/// A vector whose elements are found by an index of one kind:
///
///   IndexedVector<StageId, double> cost(stages);
///   cost[StageId(3)] = 1;
///   cost[Rank(3)];           // does not compile
///   const StageId last = cost.push_back(2);
///
/// `operator[]` REQUIRES contains(index).
template <typename Index, typename T>
class IndexedVector {
 public:
  IndexedVector() = default;
  /// REQUIRES size >= 0.
  explicit IndexedVector(int32_t size) : values_(to_size(size)) {}
  IndexedVector(int32_t size, const T& value) : values_(to_size(size), value) {}
  /// The elements of Index(0), Index(1) ...
  explicit IndexedVector(std::vector<T> values) : values_(std::move(values)) {}

  /// Returns the index of the new element.
  Index push_back(T value) {
    values_.push_back(std::move(value));
    return Index(size() - 1);
  }

  int32_t size() const { return static_cast<int32_t>(values_.size()); }
  bool empty() const { return values_.empty(); }
  /// One comparison, because every access is checked: a negative index is a large unsigned one.
  bool contains(Index index) const { return static_cast<uint32_t>(index.value()) < values_.size(); }

  decltype(auto) operator[](Index index) {
    SC_ASSERT(contains(index));
    return values_[index.position()];
  }
  decltype(auto) operator[](Index index) const {
    SC_ASSERT(contains(index));
    return values_[index.position()];
  }

  auto begin() { return values_.begin(); }
  auto end() { return values_.end(); }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

  friend bool operator==(const IndexedVector&, const IndexedVector&) = default;

 private:
  static std::size_t to_size(int32_t size) {
    SC_ASSERT(size >= 0);
    return static_cast<std::size_t>(size);
  }

  std::vector<T> values_;
};

}  // namespace stagecraft
