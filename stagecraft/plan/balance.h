#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace stagecraft {

/// Divides a chain into consecutive parts of at least one element each, so that the largest
/// cost(part) / speed(part) is as small as possible. Returns the first element of each part. Exact.
/// O(parts * n * log n) if all speeds are the same, because then fewer elements never cost more.
/// With different speeds fewer elements may cost more, because every part must have an element:
/// O(parts * n^2).
///
/// REQUIRES 1 <= speeds.size() <= costs.size(), costs >= 0, speeds > 0.
std::vector<int32_t> balance(std::span<const double> costs, std::span<const double> speeds);

/// The cost of the elements [first, end) as part `part`; infinite for a part that is not allowed.
using PartCost = std::function<double(int32_t part, int32_t first, int32_t end)>;

/// The same for any cost: O(parts * n^2) calls.
struct Balanced {
  std::vector<int32_t> begins;  ///< empty if every division has an infinite cost
  double largest = 0;
};
Balanced balance_any(int32_t n, int32_t parts, const PartCost& cost);

/// Parts whose numbers of elements differ by at most one.
std::vector<int32_t> equal_parts(int32_t n, int32_t parts);

}  // namespace stagecraft
