#include "stagecraft/plan/balance.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "stagecraft/base/assert.h"
#include "stagecraft/plan/unlimited.h"

namespace stagecraft {
namespace {

std::vector<int32_t> follow(const std::vector<std::vector<int32_t>>& from, int32_t n) {
  std::vector<int32_t> begins(from.size() - 1);
  for (std::size_t part = begins.size(); part > 0; --part) {
    n = from[part][static_cast<std::size_t>(n)];
    begins[part - 1] = n;
  }
  return begins;
}

}  // namespace

std::vector<int32_t> balance(std::span<const double> costs, std::span<const double> speeds) {
  SC_ASSERT(!speeds.empty() && speeds.size() <= costs.size());
  SC_ASSERT(std::ranges::all_of(costs, [](double cost) { return cost >= 0; }));
  SC_ASSERT(std::ranges::all_of(speeds, [](double speed) { return speed > 0; }));
  const auto n = static_cast<int32_t>(costs.size());
  const auto parts = static_cast<int32_t>(speeds.size());
  std::vector<double> sums = {0};
  for (const double cost : costs) sums.push_back(sums.back() + cost);
  const auto at = [](int32_t i) { return static_cast<std::size_t>(i); };
  const bool alike = std::all_of(speeds.begin(), speeds.end(),
                                 [&](double speed) { return speed == speeds.front(); });
  if (!alike) {
    return balance_any(n, parts,
                       [&](int32_t part, int32_t first, int32_t end) {
                         return (sums[at(end)] - sums[at(first)]) / speeds[at(part)];
                       })
        .begins;
  }
  std::vector<double> before(at(n) + 1, plan::kUnlimited);
  before[0] = 0;
  std::vector<std::vector<int32_t>> from(at(parts) + 1, std::vector<int32_t>(at(n) + 1, 0));
  for (int32_t part = 1; part <= parts; ++part) {
    std::vector<double> now(at(n) + 1, plan::kUnlimited);
    for (int32_t end = part; end <= n; ++end) {
      const auto own = [&](int32_t k) {
        return (sums[at(end)] - sums[at(k)]) / speeds[at(part - 1)];
      };
      // From k = part - 1 on, before[k] grows with k and own(k) falls, so the best k is where they
      // cross.
      int32_t low = part - 1;
      int32_t high = end - 1;
      while (low < high) {
        const int32_t middle = (low + high) / 2;
        if (before[at(middle)] >= own(middle)) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      for (const int32_t k : {low - 1, low}) {
        if (k < part - 1) continue;
        const double largest = std::max(before[at(k)], own(k));
        if (largest < now[at(end)]) {
          now[at(end)] = largest;
          from[at(part)][at(end)] = k;
        }
      }
    }
    before = std::move(now);
  }
  return follow(from, n);
}

Balanced balance_any(int32_t n, int32_t parts, const PartCost& cost) {
  const auto at = [](int32_t i) { return static_cast<std::size_t>(i); };
  std::vector<double> before(at(n) + 1, plan::kUnlimited);
  before[0] = 0;
  std::vector<std::vector<int32_t>> from(at(parts) + 1, std::vector<int32_t>(at(n) + 1, 0));
  for (int32_t part = 1; part <= parts; ++part) {
    std::vector<double> now(at(n) + 1, plan::kUnlimited);
    const int32_t last = part == parts ? n : n - (parts - part);
    for (int32_t end = part == parts ? n : part; end <= last; ++end) {
      for (int32_t k = part - 1; k < end; ++k) {
        if (before[at(k)] >= now[at(end)]) continue;
        const double largest = std::max(before[at(k)], cost(part - 1, k, end));
        if (largest < now[at(end)]) {
          now[at(end)] = largest;
          from[at(part)][at(end)] = k;
        }
      }
    }
    before = std::move(now);
  }
  Balanced result;
  result.largest = before[at(n)];
  if (result.largest < plan::kUnlimited) result.begins = follow(from, n);
  return result;
}

std::vector<int32_t> equal_parts(int32_t n, int32_t parts) {
  std::vector<int32_t> begins;
  for (int32_t part = 0; part < parts; ++part) {
    begins.push_back(static_cast<int32_t>(static_cast<int64_t>(part) * n / parts));
  }
  return begins;
}

}  // namespace stagecraft
