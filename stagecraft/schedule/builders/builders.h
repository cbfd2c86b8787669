#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// The numbers that a schedule is built for.
struct ScheduleShape {
  int32_t ranks = 1;
  int32_t microbatches = 1;
  /// Without a value: ScheduleKind::default_stages_per_rank.
  std::optional<int32_t> stages_per_rank = std::nullopt;
};

/// A shape in the letters of the papers.
struct Dims {
  int32_t p = 1;  ///< ranks
  int32_t l = 1;  ///< stages a rank
  int32_t m = 1;  ///< microbatches

  int32_t stages() const { return p * l; }
};

/// The numbers of stages that a rank can hold: from `min` to `max`, in steps of `min`.
struct StagesPerRank {
  int32_t min = 1;
  int32_t max = std::numeric_limits<int32_t>::max();

  bool contains(int32_t stages) const {
    return stages >= min && stages <= max && stages % min == 0;
  }
};

/// A schedule that can be built by name, with the limits of its shape.
struct ScheduleKind {
  std::string_view name;     ///< "Interleaved1F1B"
  std::string_view summary;  ///< one line
  /// Writes the schedule. REQUIRES dims that `check` returned.
  Schedule (*make)(const Dims& dims);
  int32_t default_stages_per_rank = 1;
  StagesPerRank stages_per_rank = {};
  /// The smallest number of microbatches that the schedule can have.
  int32_t (*min_microbatches)(int32_t ranks, int32_t stages_per_rank) = [](int32_t, int32_t) {
    return 1;
  };
  bool has_backward = true;

  /// Whether the limits above allow these dims.
  bool takes(const Dims& dims) const {
    return stages_per_rank.contains(dims.l) && dims.m >= min_microbatches(dims.p, dims.l);
  }
  /// ArgumentError, with the nearest legal value, for a shape outside the limits, and for more than
  /// 2048 ranks or 2^26 pairs of a stage and a microbatch.
  Dims check(const ScheduleShape& shape) const;
  /// Builds the schedule at level kCompute. Throws what `check` throws.
  Schedule build(const ScheduleShape& shape) const { return make(check(shape)); }
};

/// All schedules, in the order of the documentation.
std::span<const ScheduleKind> schedule_kinds();
/// Their names, for messages: "GPipe, 1F1B, LoopedBFS".
std::string list_schedule_names();
/// The schedule of a name, without regard to case; null for an unknown name.
const ScheduleKind* find_schedule_kind(std::string_view name);
/// The schedule of a name, without regard to case. ArgumentError, which lists the names, for an
/// unknown name.
const ScheduleKind& get_schedule_kind(std::string_view name);

/// Builds the schedule of that name at level kCompute:
///
///   Schedule s = build_schedule("1f1b", {.ranks = 4, .microbatches = 8});
///
/// ArgumentError as from get_schedule_kind and ScheduleKind::check.
Schedule build_schedule(std::string_view name, const ScheduleShape& shape);

}  // namespace stagecraft
