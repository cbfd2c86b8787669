#include "stagecraft/viz/palette.h"

#include <cmath>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace stagecraft::viz {
namespace {

double distance(Rgb a, Rgb b) {
  return std::hypot(a.r - b.r, a.g - b.g, a.b - b.b);
}

TEST(BarColor, TellsTypesAndStagesApart) {
  for (int32_t chunks = 1; chunks <= 4; ++chunks) {
    for (const ActionType type : kBarTypes) {
      for (const ActionType other : kBarTypes) {
        for (int32_t chunk = 0; chunk < chunks; ++chunk) {
          for (int32_t second = 0; second < chunks; ++second) {
            if (type == other && chunk == second) continue;
            EXPECT_GT(distance(bar_color(type, chunk, chunks), bar_color(other, second, chunks)),
                      30)
                << to_string(type) << chunk << ' ' << to_string(other) << second << " of "
                << chunks;
          }
        }
      }
    }
  }
}

TEST(BarColor, TakesAnyNumberOfStages) {
  EXPECT_EQ(bar_color(ActionType::kForward, 9, 4), bar_color(ActionType::kForward, 3, 4));
  EXPECT_EQ(bar_color(ActionType::kForward, 0, 0), bar_color(ActionType::kForward, 0, 1));
}

TEST(TextColor, Contrasts) {
  EXPECT_EQ(to_hex(text_color({0, 0, 0})), "#ffffff");
  EXPECT_EQ(to_hex(text_color({255, 255, 200})), "#171e2a");
}

}  // namespace
}  // namespace stagecraft::viz
