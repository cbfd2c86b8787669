#pragma once

#include "stagecraft/schedule/builders/builders.h"

/// The schedules, in the order of the documentation. ROW(x) is the function `x` of builders/x.cpp;
/// CMakeLists.txt takes the sources from here, too.
#define SC_SCHEDULES(ROW)      \
  ROW(gpipe)                   \
  ROW(one_f_one_b)             \
  ROW(looped_bfs)              \
  ROW(interleaved_1f1b)        \
  ROW(interleaved_zero_bubble) \
  ROW(zbv_zero_bubble)         \
  ROW(dual_pipe_v)             \
  ROW(hanayo)                  \
  ROW(forward_only)

namespace stagecraft::builders {

#define SC_DECLARE(name) ScheduleKind name();
SC_SCHEDULES(SC_DECLARE)
#undef SC_DECLARE

}  // namespace stagecraft::builders
