#include "stagecraft/schedule/builders/builders.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "stagecraft/base/check.h"
#include "stagecraft/schedule/builders/all.h"

namespace stagecraft {
namespace {

// The most pairs of a stage and a microbatch. A lowered schedule has about six actions of eight
// bytes for each pair.
constexpr int64_t kMaxPairs = int64_t{1} << 26;
// The most ranks: the number of idle slots grows with their square.
constexpr int32_t kMaxRanks = 2048;

bool equal_without_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

void check_positive(std::string_view name, std::string_view what, int32_t value) {
  require<ArgumentError>(value >= 1, "{}: the number of {} must be at least 1, got {}", name, what,
                         value);
}

void check_stages_per_rank(std::string_view name, const StagesPerRank& legal, int32_t stages) {
  if (legal.contains(stages)) return;
  const int64_t below = std::clamp(stages / legal.min * legal.min, legal.min, legal.max);
  const bool is_between = stages > legal.min && stages < legal.max;
  throw ArgumentError(
      fmt::format("{} takes {}{} stage{} a rank, got {}; the nearest legal value{} {}{}", name,
                  legal.min == legal.max ? "" : "a multiple of ", legal.min,
                  legal.min == 1 ? "" : "s", stages, is_between ? "s are" : " is", below,
                  is_between ? fmt::format(" and {}", below + legal.min) : ""));
}

}  // namespace

Dims ScheduleKind::check(const ScheduleShape& shape) const {
  const Dims dims{shape.ranks, shape.stages_per_rank.value_or(default_stages_per_rank),
                  shape.microbatches};
  check_positive(name, "ranks", dims.p);
  check_positive(name, "stages per rank", dims.l);
  check_positive(name, "microbatches", dims.m);
  require<ArgumentError>(dims.p <= kMaxRanks, "{}: at most {} ranks, got {}", name, kMaxRanks,
                         dims.p);
  check_stages_per_rank(name, stages_per_rank, dims.l);
  const int64_t stages = int64_t{dims.p} * dims.l;
  require<ArgumentError>(
      stages <= kMaxPairs && stages * dims.m <= kMaxPairs,
      "{}: {} ranks x {} stages x {} microbatches are too many; their product is at most {}", name,
      dims.p, dims.l, dims.m, kMaxPairs);
  require<ArgumentError>(stages <= Action::kMaxStage + 1, "{}: at most {} stages, got {}", name,
                         Action::kMaxStage + 1, stages);
  const int32_t least = min_microbatches(dims.p, dims.l);
  require<ArgumentError>(dims.m >= least,
                         "{} with {} ranks ({} stages) needs at least {} microbatches, got {}; "
                         "the nearest legal value is {}",
                         name, dims.p, stages, least, dims.m, least);
  return dims;
}

std::span<const ScheduleKind> schedule_kinds() {
#define SC_CALL(name) builders::name(),
  static const std::array kKinds = {SC_SCHEDULES(SC_CALL)};
#undef SC_CALL
  return kKinds;
}

std::string list_schedule_names() {
  std::string names;
  for (const ScheduleKind& kind : schedule_kinds()) {
    if (!names.empty()) names += ", ";
    names += kind.name;
  }
  return names;
}

const ScheduleKind* find_schedule_kind(std::string_view name) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    if (equal_without_case(kind.name, name)) return &kind;
  }
  return nullptr;
}

const ScheduleKind& get_schedule_kind(std::string_view name) {
  if (const ScheduleKind* const kind = find_schedule_kind(name)) return *kind;
  throw ArgumentError(
      fmt::format("there is no schedule '{}'; the schedules are {}", name, list_schedule_names()));
}

Schedule build_schedule(std::string_view name, const ScheduleShape& shape) {
  return get_schedule_kind(name).build(shape);
}

}  // namespace stagecraft
