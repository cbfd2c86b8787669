#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "stagecraft/viz/bars.h"

namespace stagecraft::viz {

/// A coordinate as text, with at most two decimals.
std::string px(double value);

/// Where lanes are in a figure, in pixels.
struct LaneBox {
  double left = 0;
  double right = 0;
  double end = 0;     ///< the time at `right`; 0 is at `left`
  double top = 0;     ///< of the first lane
  double pitch = 0;   ///< from one lane to the next
  double height = 0;  ///< of a lane's bars

  double scale() const { return end > 0 ? (right - left) / end : 0; }
  double x_of(double time) const { return left + time * scale(); }
  double top_of(std::size_t rank) const { return top + static_cast<double>(rank) * pitch; }
};

enum class LaneStyle : uint8_t {
  kFull,   ///< groups of class "F", "I", ... with numbers in bars where there is room
  kMuted,  ///< groups of class "plan", pale and without numbers
};

/// Draws bars one by one. Where some are too narrow to be distinguished, the heights of the colours
/// show how time divides among the types. Bars are grouped by colour.
std::string draw_svg_lanes(std::span<const Lane> lanes, const LaneBox& box, LaneStyle style);

}  // namespace stagecraft::viz
