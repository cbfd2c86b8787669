#include "stagecraft/viz/palette.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace stagecraft::viz {
namespace {

struct Ramp {
  Rgb dark;
  Rgb middle;
  Rgb light;
};

constexpr Ramp kForwardRamp{{35, 84, 150}, {62, 120, 190}, {168, 202, 236}};
constexpr Ramp kInputRamp{{10, 108, 112}, {22, 146, 150}, {146, 212, 209}};
constexpr Ramp kWeightRamp{{98, 134, 30}, {147, 185, 60}, {212, 230, 163}};
constexpr Ramp kBackwardRamp{{190, 90, 16}, {232, 136, 48}, {250, 206, 158}};
constexpr Ramp kOtherRamp{{92, 100, 112}, {128, 137, 150}, {200, 206, 214}};
constexpr Rgb kWhite{255, 255, 255};
constexpr Rgb kInk{23, 30, 42};

const Ramp& ramp_of(ActionType type) {
  switch (type) {
    case ActionType::kForward:
      return kForwardRamp;
    case ActionType::kBackwardInput:
      return kInputRamp;
    case ActionType::kBackwardWeight:
      return kWeightRamp;
    case ActionType::kBackward:
      return kBackwardRamp;
    default:
      return kOtherRamp;
  }
}

Rgb mix(Rgb a, Rgb b, double t) {
  const auto channel = [t](uint8_t x, uint8_t y) {
    return static_cast<uint8_t>(std::lround(x + (y - x) * t));
  };
  return {channel(a.r, b.r), channel(a.g, b.g), channel(a.b, b.b)};
}

double luminance(Rgb color) {
  const auto linear = [](uint8_t value) {
    const double v = value / 255.0;
    return v <= 0.04045 ? v / 12.92 : std::pow((v + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * linear(color.r) + 0.7152 * linear(color.g) + 0.0722 * linear(color.b);
}

double contrast(Rgb a, Rgb b) {
  const double x = luminance(a);
  const double y = luminance(b);
  return (std::max(x, y) + 0.05) / (std::min(x, y) + 0.05);
}

}  // namespace

std::string to_hex(Rgb color) {
  return fmt::format("#{:02x}{:02x}{:02x}", color.r, color.g, color.b);
}

Rgb bar_color(ActionType type, int32_t chunk, int32_t chunks) {
  const Ramp& ramp = ramp_of(type);
  if (chunks <= 1) return ramp.middle;
  const double t = std::clamp(static_cast<double>(chunk) / (chunks - 1), 0.0, 1.0);
  return t < 0.5 ? mix(ramp.dark, ramp.middle, 2 * t) : mix(ramp.middle, ramp.light, 2 * t - 1);
}

Rgb text_color(Rgb background) {
  return contrast(background, kWhite) >= contrast(background, kInk) ? kWhite : kInk;
}

std::string_view long_name(ActionType type) {
  switch (type) {
    case ActionType::kForward:
      return "Forward";
    case ActionType::kBackwardInput:
      return "Backward, inputs";
    case ActionType::kBackwardWeight:
      return "Backward, weights";
    case ActionType::kBackward:
      return "Backward";
    default:
      return to_string(type);
  }
}

}  // namespace stagecraft::viz
