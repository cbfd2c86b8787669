#include <fmt/format.h>

#include "stagecraft/schedule/verify_parts.h"

namespace stagecraft {
namespace {

// Whether a forward-only schedule may have actions of this type.
bool is_forward_type(ActionType type) {
  switch (type) {
    case ActionType::kForward:
    case ActionType::kSendForward:
    case ActionType::kRecvForward:
    case ActionType::kWaitSendForward:
    case ActionType::kUnshard:
    case ActionType::kReshard:
    case ActionType::kIdle:
      return true;
    default:
      return false;
  }
}

// Why an action does not belong in the schedule.
std::string why_unexpected(Action action, Level level, const VerifyOptions& options) {
  const ActionType type = action.type();
  if (type == ActionType::kIdle) return "a lowered schedule has no idle slots";
  if (level == Level::kCompute && (is_transfer(type) || is_send_wait(type)))
    return "a compute schedule has no transfers";
  if (options.mode == VerifyMode::kForwardOnly && !is_forward_type(type)) {
    return "a forward-only schedule has no backward";
  }
  return fmt::format("there are {} microbatches", options.microbatches.value_or(0));
}

}  // namespace

bool verify_places(const Schedule& schedule, const VerifyOptions& options, ActionIndex& index,
                   Findings& findings) {
  const IndexedVector<StageId, Rank>& rank_of = schedule.placement().ranks();
  const bool is_lowered = schedule.level() == Level::kLowered;
  const bool is_forward_only = options.mode == VerifyMode::kForwardOnly;
  const int32_t microbatches = options.microbatches.value_or(schedule.num_microbatches());
  const std::size_t before = findings.count();

  for (std::size_t r = 0; r < schedule.lists().size(); ++r) {
    const Rank rank(static_cast<int32_t>(r));
    const ActionList& list = schedule.lists()[r];
    const uint32_t first = index.first_place(r);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Action action = list[i];
      const ActionType type = action.type();
      if (type == ActionType::kOverlap) continue;
      const bool is_unexpected =
          (type == ActionType::kIdle && is_lowered) ||
          ((is_transfer(type) || is_send_wait(type)) && !is_lowered) ||
          (is_forward_only && !is_forward_type(type)) ||
          (has_microbatch(type) && action.microbatch().value() >= microbatches);
      if (is_unexpected) {
        findings.add_at(FindingKind::kUnexpected, r, i,
                        [&] { return why_unexpected(action, schedule.level(), options); });
      }
      if (type == ActionType::kIdle) continue;
      const StageId stage = action.stage();
      const Rank home = rank_of.contains(stage) ? rank_of[stage] : Placement::kNowhere;
      if (home != rank) {
        findings.add_at(FindingKind::kPlacement, r, i, [&] {
          return home == Placement::kNowhere
                     ? fmt::format("no rank holds stage {}", stage.value())
                     : fmt::format("stage {} is on rank {}", stage.value(), home.value());
        });
        continue;
      }
      if (!has_microbatch(type)) continue;
      if (!index.add(action, first + static_cast<uint32_t>(i))) {
        findings.add_at(FindingKind::kDuplicate, r, i, [&] {
          const uint32_t earlier = index.find(type, action.stage(), action.microbatch());
          return fmt::format("comes a second time; first at {}",
                             findings.slot_text(r, earlier - first));
        });
      }
    }
  }
  return findings.count() == before;
}

}  // namespace stagecraft
