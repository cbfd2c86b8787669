#include "stagecraft/schedule/builders/builders.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include <fmt/format.h>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/builders/all.h"

namespace stagecraft {
namespace {

constexpr std::array kKinds = {
    ScheduleKind{"GPipe", "all forwards, then all backwards", 1, true, builders::gpipe},
    ScheduleKind{"1F1B", "forward and backward in turns, few activations at a time", 1, true,
                 builders::one_f_one_b},
    ScheduleKind{"LoopedBFS", "GPipe with several stages a rank, breadth first", 2, true,
                 builders::looped_bfs},
    ScheduleKind{"Interleaved1F1B", "1F1B with several stages a rank, a smaller bubble", 2, true,
                 builders::interleaved_1f1b},
    ScheduleKind{"InterleavedZeroBubble", "Interleaved1F1B with weight work in the bubbles", 2,
                 true, builders::interleaved_zero_bubble},
    ScheduleKind{"ZBVZeroBubble", "two stages a rank in a V, weight work in the bubbles", 2, true,
                 builders::zbv_zero_bubble},
    ScheduleKind{"DualPipeV", "two stages a rank in a V, forward beside backward", 2, true,
                 builders::dual_pipe_v},
    ScheduleKind{"ForwardOnly", "inference", 1, false, builders::forward_only},
};

bool equal_without_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

}  // namespace

std::span<const ScheduleKind> schedule_kinds() {
  return kKinds;
}

const ScheduleKind& get_schedule_kind(std::string_view name) {
  std::string names;
  for (const ScheduleKind& kind : kKinds) {
    if (equal_without_case(kind.name, name)) return kind;
    if (!names.empty()) names += ", ";
    names += kind.name;
  }
  throw ArgumentError(fmt::format("there is no schedule '{}'; there are {}", name, names));
}

Schedule build_schedule(std::string_view name, const ScheduleShape& shape) {
  return get_schedule_kind(name).build(shape);
}

}  // namespace stagecraft
