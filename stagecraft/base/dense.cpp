#include "stagecraft/base/dense.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "stagecraft/base/assert.h"

namespace stagecraft::detail {

bool is_dense(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  if (sizes.size() != strides.size()) return false;
  if (std::ranges::count(sizes, 0) > 0) {
    return std::ranges::all_of(strides, [](int64_t stride) { return stride >= 0; });
  }
  std::vector<std::pair<int64_t, int64_t>> dims;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1) dims.emplace_back(strides[i], sizes[i]);
  }
  std::ranges::sort(dims);
  int64_t next = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != next) return false;
    const bool overflows = __builtin_mul_overflow(next, size, &next);
    SC_ASSERT(!overflows);
  }
  return true;
}

}  // namespace stagecraft::detail
