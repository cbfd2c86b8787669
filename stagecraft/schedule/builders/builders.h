#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// What a schedule is built for.
struct ScheduleShape {
  int32_t ranks = 1;
  int32_t microbatches = 1;
  /// Without it: what suits the schedule, 1 for GPipe, 1F1B and ForwardOnly, 2 for the others.
  std::optional<int32_t> stages_per_rank = std::nullopt;
};

/// A schedule that can be built by name.
struct ScheduleKind {
  std::string_view name;     ///< "Interleaved1F1B"
  std::string_view summary;  ///< one line
  int32_t default_stages_per_rank = 1;
  bool has_backward = true;
  Schedule (*build)(const ScheduleShape& shape);
};

/// All of them, in the order of the documentation.
std::span<const ScheduleKind> schedule_kinds();
/// By name, without regard to case. ArgumentError that lists the names for an unknown one.
const ScheduleKind& get_schedule_kind(std::string_view name);

/// Builds the schedule of that name at level kCompute:
///
///   Schedule s = build_schedule("1f1b", {.ranks = 4, .microbatches = 8});
///
/// ArgumentError, with the nearest legal value, for a shape that it cannot have, and for more than
/// 2048 ranks or 2^26 pairs of a stage and a microbatch.
Schedule build_schedule(std::string_view name, const ScheduleShape& shape);

}  // namespace stagecraft
