#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stagecraft/base/assert.h"

namespace stagecraft {

/// A vector whose elements are found by an index of one kind:
///
///   IndexedVector<StageId, double> cost(stages);
///   cost[StageId(3)] = 1;
///   cost[Rank(3)];           // does not compile
///
/// `operator[]` REQUIRES contains(index).
template <typename Index, typename T>
class IndexedVector {
 public:
  IndexedVector() = default;
  /// REQUIRES size >= 0.
  explicit IndexedVector(int32_t size, const T& value = T()) {
    SC_ASSERT(size >= 0);
    values_.assign(static_cast<std::size_t>(size), value);
  }

  int32_t size() const { return static_cast<int32_t>(values_.size()); }
  bool contains(Index index) const { return index.value() >= 0 && index.value() < size(); }

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

 private:
  std::vector<T> values_;
};

}  // namespace stagecraft
