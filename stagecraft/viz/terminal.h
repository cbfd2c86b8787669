#pragma once

#include <cstdint>
#include <string>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft {

/// The colours of the terminal.
enum class TerminalColor : uint8_t {
  kNone,       ///< ASCII alone: letters for types, lower case for every second stage of a rank
  k256,        ///< 256 colours
  kTrueColor,  ///< 24 bits
};

/// Options of draw_terminal.
struct TerminalOptions {
  int32_t width = 100;  ///< columns in all; 40 to 100000
  TerminalColor color = TerminalColor::kTrueColor;
  std::string title = {};
  int32_t max_ranks = 64;  ///< more lanes than this: those in the middle are left out
  /// The plan: a second simulation of the schedule, for example beside a recording. It is a row
  /// under each lane, on the same time axis. Must outlive the call.
  const Simulation* plan = nullptr;
};

/// A drawing for a terminal: one lane a rank, with its bubble and peak memory, a time axis, a
/// legend and a line of totals. Every line ends with "\n".
///
/// If the time steps fit, each is one cell. Otherwise times are rounded to columns, and a column
/// with several actions shows the type that takes most of it. The parts of an overlap share its
/// time from left to right.
///
/// ArgumentError unless `simulation` and the plan are of `schedule`, and for a width below 40.
std::string draw_terminal(const Schedule& schedule, const Simulation& simulation,
                          const TerminalOptions& options = {});

}  // namespace stagecraft
