#include <algorithm>

#include <fmt/format.h>

#include "stagecraft/schedule/needs.h"
#include "stagecraft/schedule/passes/pass_input.h"
#include "stagecraft/schedule/verify_parts.h"

namespace stagecraft {
namespace {

constexpr uint32_t kNotFound = ActionIndex::kNowhere;

class Completeness {
 public:
  Completeness(const Schedule& schedule, const StageGraph& graph, const VerifyOptions& options,
               const ActionIndex& index, Findings& findings)
      : schedule_(schedule),
        graph_(graph),
        needs_(schedule, graph, Needs::Blocks::kSends),
        mode_(options.mode),
        is_mixed_(options.mixed_backward && options.mode == VerifyMode::kPartial),
        microbatches_(options.microbatches.value_or(schedule.num_microbatches())),
        index_(index),
        findings_(findings),
        has_waits_(
            has_any(schedule, {ActionType::kWaitSendForward, ActionType::kWaitSendBackward})) {}

  // A text may name stage 10^7 or microbatch 10^9 with a handful of actions. Then most actions are
  // missing, and the first findings say as much as all of them. `limit` bounds the number of pairs
  // that are checked.
  void check_pairs(int64_t limit) {
    for (int32_t s = 0; s < schedule_.num_stages() && limit > 0; ++s) {
      set_stage(StageId(s));
      for (int32_t m = 0; m < microbatches_ && limit > 0; ++m, --limit) {
        check_compute(StageId(s), MicrobatchId(m));
        if (schedule_.level() == Level::kLowered) check_transfers(StageId(s), MicrobatchId(m));
      }
    }
  }

  // Checks only pairs that have an action, each at the first of its types.
  void check_occurring() {
    for (std::size_t r = 0; r < schedule_.lists().size(); ++r) {
      const ActionList& list = schedule_.lists()[r];
      for (std::size_t i = 0; i < list.size(); ++i) {
        const Action action = list[i];
        if (!has_microbatch(action.type()) || action.stage().value() >= schedule_.num_stages() ||
            !is_first_of_pair(action, r, i)) {
          continue;
        }
        set_stage(action.stage());
        check_compute(action.stage(), action.microbatch());
        if (schedule_.level() != Level::kLowered) continue;
        check_transfers(action.stage(), action.microbatch());
      }
    }
  }

 private:
  void set_stage(StageId stage) {
    to_other_ranks_ = needs_.any_elsewhere(stage, graph_.consumers(stage));
    from_other_ranks_ = needs_.any_elsewhere(stage, graph_.producers(stage));
  }

  bool is_first_of_pair(Action action, std::size_t rank, std::size_t offset) const {
    const auto find_type = [&](int type) {
      return index_.find(static_cast<ActionType>(type), action.stage(), action.microbatch());
    };
    const int type = static_cast<int>(action.type());
    if (find_type(type) != index_.first_place(rank) + offset) return false;
    for (int other = 0; other < type; ++other) {
      if (find_type(other) != kNotFound) return false;
    }
    return true;
  }

  void check_compute(StageId stage, MicrobatchId m) {
    const uint32_t f = find(ActionType::kForward, stage, m);
    const uint32_t b = find(ActionType::kBackward, stage, m);
    const uint32_t i = find(ActionType::kBackwardInput, stage, m);
    const uint32_t w = find(ActionType::kBackwardWeight, stage, m);
    if (b != kNotFound && (i != kNotFound || w != kNotFound) && !is_mixed_) {
      const auto [rank, offset] = findings_.locate(index_, i != kNotFound ? i : w);
      findings_.add_at(FindingKind::kDuplicate, rank, offset, [&] {
        return fmt::format("{} includes it already",
                           to_string(Action(stage, ActionType::kBackward, m)));
      });
    }
    if (mode_ == VerifyMode::kPartial) return;
    if (f == kNotFound) add_missing(ActionType::kForward, stage, m);
    if (mode_ == VerifyMode::kForwardOnly || b != kNotFound) return;
    if (i == kNotFound && w == kNotFound) {
      add_missing(ActionType::kBackward, stage, m);
    } else if (i == kNotFound) {
      add_missing(ActionType::kBackwardInput, stage, m);
    } else if (w == kNotFound) {
      add_missing(ActionType::kBackwardWeight, stage, m);
    }
  }

  void check_transfers(StageId stage, MicrobatchId m) {
    const bool has_backward = mode_ != VerifyMode::kForwardOnly;
    check_transfer(ActionType::kSendForward, stage, m, to_other_ranks_);
    check_transfer(ActionType::kRecvForward, stage, m, from_other_ranks_);
    if (has_waits_) check_wait(ActionType::kSendForward, stage, m);
    if (!has_backward) return;
    check_transfer(ActionType::kSendBackward, stage, m, from_other_ranks_);
    check_transfer(ActionType::kRecvBackward, stage, m, to_other_ranks_);
    if (has_waits_) check_wait(ActionType::kSendBackward, stage, m);
  }

  // A schedule has a wait for each of its sends, or none at all. A part of a schedule may have
  // either.
  void check_wait(ActionType send, StageId stage, MicrobatchId m) {
    if (mode_ == VerifyMode::kPartial) return;
    const bool is_sent = find(send, stage, m) != kNotFound;
    const uint32_t wait = find(wait_of(send), stage, m);
    if (is_sent && wait == kNotFound) add_missing(wait_of(send), stage, m);
    if (is_sent || wait == kNotFound) return;
    const auto [rank, offset] = findings_.locate(index_, wait);
    findings_.add_at(FindingKind::kUnexpected, rank, offset, [&] {
      return fmt::format("there is no {} to wait for", to_string(Action(stage, send, m)));
    });
  }

  void check_transfer(ActionType type, StageId stage, MicrobatchId m, bool expected) {
    const uint32_t place = find(type, stage, m);
    if (place == kNotFound) {
      if (expected && (mode_ != VerifyMode::kPartial || is_awaited(type, stage, m))) {
        add_missing(type, stage, m);
      }
    } else if (!expected) {
      const auto [rank, offset] = findings_.locate(index_, place);
      findings_.add_at(FindingKind::kUnexpected, rank, offset, [&] {
        const bool down = type == ActionType::kSendForward || type == ActionType::kRecvBackward;
        return fmt::format("stage {} {} no stage on another rank", stage.value(),
                           down ? "is read by" : "reads from");
      });
    }
  }

  // Whether a part of a schedule makes a value and reads it on a different rank. Then the send
  // belongs to the same part, although its receive may have been posted before.
  bool is_awaited(ActionType send, StageId stage, MicrobatchId m) const {
    if (send != ActionType::kSendForward && send != ActionType::kSendBackward) return false;
    const bool is_forward = send == ActionType::kSendForward;
    const auto computes = [&](StageId s) {
      return is_forward ? find(ActionType::kForward, s, m) != kNotFound
                        : index_.find_gradient_maker(s, m) != kNotFound;
    };
    const auto readers = is_forward ? graph_.consumers(stage) : graph_.producers(stage);
    return computes(stage) && std::any_of(readers.begin(), readers.end(), [&](StageId reader) {
             return needs_.is_elsewhere(stage, reader) && computes(reader);
           });
  }

  uint32_t find(ActionType type, StageId stage, MicrobatchId m) const {
    return m.value() < schedule_.num_microbatches() ? index_.find(type, stage, m) : kNotFound;
  }

  void add_missing(ActionType type, StageId stage, MicrobatchId m) {
    findings_.add(FindingKind::kMissing, to_string(Action(stage, type, m)), [&] {
      const Rank rank = schedule_.placement().ranks()[stage];
      return rank == Placement::kNowhere ? "is missing, and no rank holds its stage"
                                         : fmt::format("is missing on rank {}", rank.value());
    });
  }

  const Schedule& schedule_;
  const StageGraph& graph_;
  Needs needs_;
  VerifyMode mode_;
  bool is_mixed_;
  int32_t microbatches_;
  const ActionIndex& index_;
  Findings& findings_;
  bool has_waits_;
  bool to_other_ranks_ = false;
  bool from_other_ranks_ = false;
};

void check_placement(const Schedule& schedule, const VerifyOptions& options, Findings& findings) {
  if (options.mode == VerifyMode::kPartial) return;
  for (int32_t r = 0; r < schedule.num_ranks(); ++r) {
    if (!schedule.placement().stages(Rank(r)).empty()) continue;
    findings.add({FindingKind::kPlacement, Rank(r), std::nullopt, "", "has no stage", {}});
  }
  for (StageId s(0); s.value() < schedule.num_stages(); ++s) {
    if (schedule.placement().ranks()[s] != Placement::kNowhere) continue;
    findings.add(FindingKind::kPlacement, "",
                 [&] { return fmt::format("no rank holds stage {}", s.value()); });
  }
}

}  // namespace

void verify_complete(const Schedule& schedule, const StageGraph& graph,
                     const VerifyOptions& options, const ActionIndex& index, Findings& findings) {
  check_placement(schedule, options, findings);
  if (schedule.num_stages() == 0) return;
  Completeness completeness(schedule, graph, options, index, findings);
  if (options.mode == VerifyMode::kPartial) return completeness.check_occurring();
  if (options.microbatches.value_or(schedule.num_microbatches()) <= 0) {
    findings.add(FindingKind::kMissing, "", [] { return "there are no microbatches"; });
  }
  const auto kept = static_cast<int64_t>(std::min<std::size_t>(options.max_findings, 1U << 30U));
  completeness.check_pairs(2 * schedule.num_actions() + kept + 64);
}

}  // namespace stagecraft
