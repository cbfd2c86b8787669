#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stagecraft/schedule/action.h"

namespace stagecraft::viz {

struct Rgb {
  uint8_t r = 0;
  uint8_t g = 0;
  uint8_t b = 0;

  friend bool operator==(Rgb, Rgb) = default;
};

/// "#3b76bd".
std::string to_hex(Rgb color);

/// The colour of F, I, W or B (any other type is grey) for the stage that is number `chunk` of the
/// `chunks` stages of its rank: the first is the darkest. People who cannot distinguish red from
/// green can distinguish the colours, too: by lightness if not by hue.
Rgb bar_color(ActionType type, int32_t chunk, int32_t chunks);

/// White or nearly black, whichever reads better on `background`.
Rgb text_color(Rgb background);

/// "Forward", "Backward", "Backward, inputs", "Backward, weights"; for other types, the word of the
/// text form.
std::string_view long_name(ActionType type);

/// F, I, W, B: those with a colour of their own, in the order of legends.
inline constexpr ActionType kBarTypes[] = {ActionType::kForward, ActionType::kBackwardInput,
                                           ActionType::kBackwardWeight, ActionType::kBackward};

}  // namespace stagecraft::viz
