#include "stagecraft/plan/balance.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

namespace stagecraft {
namespace {

double largest_part(const std::vector<double>& costs, const std::vector<double>& speeds,
                    const std::vector<int32_t>& begins) {
  double largest = 0;
  for (std::size_t p = 0; p < begins.size(); ++p) {
    const std::size_t end =
        p + 1 < begins.size() ? static_cast<std::size_t>(begins[p + 1]) : costs.size();
    double sum = 0;
    for (auto i = static_cast<std::size_t>(begins[p]); i < end; ++i) sum += costs[i];
    largest = std::max(largest, sum / speeds[p]);
  }
  return largest;
}

/// The least largest part over all divisions, one after the other.
double try_all(const std::vector<double>& costs, const std::vector<double>& speeds) {
  const std::size_t n = costs.size();
  double best = 1e300;
  for (uint32_t mask = 0; mask < (1U << (n - 1)); ++mask) {
    std::vector<int32_t> begins = {0};
    for (std::size_t i = 1; i < n; ++i) {
      if ((mask >> (i - 1)) & 1U) begins.push_back(static_cast<int32_t>(i));
    }
    if (begins.size() == speeds.size()) {
      best = std::min(best, largest_part(costs, speeds, begins));
    }
  }
  return best;
}

TEST(Balance, EqualsBruteForceOnRandomChains) {
  std::mt19937 random(25);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t n = 1 + random() % (round % 50 == 0 ? 14 : 11);
    const std::size_t parts = 1 + random() % n;
    std::vector<double> costs;
    std::vector<double> speeds;
    for (std::size_t i = 0; i < n; ++i) costs.push_back(static_cast<double>(random() % 12));
    const bool alike = random() % 2 == 0;
    for (std::size_t i = 0; i < parts; ++i) {
      speeds.push_back(alike ? 1 : 0.5 + static_cast<double>(random() % 4));
    }
    const double best = try_all(costs, speeds);
    const std::vector<int32_t> begins = balance(costs, speeds);
    ASSERT_EQ(begins.size(), parts) << "round " << round;
    ASSERT_EQ(begins.front(), 0);
    ASSERT_TRUE(std::is_sorted(begins.begin(), begins.end(), std::less_equal<>())) << round;
    ASSERT_LT(begins.back(), static_cast<int32_t>(n));
    ASSERT_DOUBLE_EQ(largest_part(costs, speeds, begins), best) << "round " << round;
    const Balanced any = balance_any(static_cast<int32_t>(n), static_cast<int32_t>(parts),
                                     [&](int32_t part, int32_t first, int32_t end) {
                                       double sum = 0;
                                       for (int32_t i = first; i < end; ++i)
                                         sum += costs[static_cast<std::size_t>(i)];
                                       return sum / speeds[static_cast<std::size_t>(part)];
                                     });
    ASSERT_DOUBLE_EQ(any.largest, best) << "round " << round;
    ASSERT_DOUBLE_EQ(largest_part(costs, speeds, any.begins), best) << "round " << round;
  }
}

TEST(Balance, EqualPartsDifferByOne) {
  EXPECT_EQ(equal_parts(50, 8), (std::vector<int32_t>{0, 6, 12, 18, 25, 31, 37, 43}));
  EXPECT_EQ(equal_parts(3, 3), (std::vector<int32_t>{0, 1, 2}));
}

}  // namespace
}  // namespace stagecraft
