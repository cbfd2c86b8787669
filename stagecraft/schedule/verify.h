#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/base/index.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"

namespace stagecraft {

/// What a schedule has to be complete for.
enum class VerifyMode : uint8_t {
  /// Every stage and microbatch: one F, and one B or one I and one W.
  kTraining,
  /// Every stage and microbatch: one F; no backward, no gradients.
  kForwardOnly,
  /// A part of a schedule: an action may occur once. An action that it needs either comes earlier
  /// in the part or was done before the part.
  kPartial,
};

/// "training", "forward-only" or "partial".
std::string_view to_string(VerifyMode mode);
/// kForwardOnly if no I, W or B occurs, otherwise kTraining.
VerifyMode infer_mode(const Schedule& schedule);

/// What verify expects of a schedule.
struct VerifyOptions {
  VerifyMode mode = VerifyMode::kTraining;
  /// The expected number of microbatches. Without a value, as many as occur.
  std::optional<int32_t> microbatches = std::nullopt;
  /// For kPartial: a B may occur as well as an I or W of the same stage and microbatch, as in lists
  /// that only show an order. A W then needs nothing.
  bool mixed_backward = false;
  /// The most stages of a rank that may be unsharded at once. Without a value, any number. The
  /// stages of one overlap may exceed it.
  std::optional<int32_t> max_active_stages = std::nullopt;
  /// The most of its next stages that a rank may have unsharded, one number for each rank. Empty:
  /// any number. An UNSHARD may come as soon as fewer other stages than this number are used before
  /// its stage. Stages of one slot are used at once.
  std::vector<int32_t> unshard_lookahead = {};
  /// Findings beyond this number are counted, not kept.
  std::size_t max_findings = 20;
};

/// The kind of a defect.
enum class FindingKind : uint8_t {
  kPlacement,   ///< an action on the wrong rank, a stage on no rank, or a rank without a stage
  kMissing,     ///< an action that is required and not there
  kDuplicate,   ///< an action that is there twice, or B beside I or W
  kUnexpected,  ///< an action that does not belong in this schedule
  kOrder,       ///< an action before an action of the same rank that it needs
  kDeadlock,    ///< ranks that wait for each other for ever
  kSharding,    ///< UNSHARD and RESHARD that do not pair up, or compute on a resharded stage
  kReduceGrad,  ///< REDUCE_GRAD before the last backward of its stage, twice, or for some stages
                ///< only; its wait without it, twice, or for some stages only
};

std::string_view to_string(FindingKind kind);

/// One defect of a schedule.
struct Finding {
  FindingKind kind = FindingKind::kMissing;
  /// The place of the action; nothing for an action that is missing.
  std::optional<Rank> rank = std::nullopt;
  std::optional<int64_t> position = std::nullopt;  ///< slot of the rank's list, from 0
  std::string action;                              ///< the text of the action, "2F0"
  std::string message;                             ///< what is wrong, without the place
  /// For kOrder and kDeadlock: an action, the action that it waits for, and so on around the cycle.
  std::vector<std::string> cycle;
};

/// "rank 1, slot 7, 2F0: needs 2RECV_F0, which comes later, at slot 9".
std::string to_string(const Finding& finding);

/// The result of verify.
struct Verdict {
  std::vector<Finding> findings;
  std::size_t num_findings = 0;  ///< including those that were not kept

  bool ok() const { return num_findings == 0; }
};

/// Finds out whether a schedule can be executed, and if not, why. Good means:
///
/// - every action is on the rank of its stage, every stage is on a rank, every rank has a stage;
/// - the schedule is complete for its mode, and no action occurs twice;
/// - lowered: each value or gradient that goes to a different rank has one SEND after the action
///   that makes it and one RECV before the action that needs it; there are no other transfers and
///   no idle slots; there is a wait after each SEND, once, or no wait for a send at all;
/// - UNSHARD and RESHARD of a stage alternate, all its compute is between them, and it ends
///   resharded; no more stages than VerifyOptions::max_active_stages are unsharded at once, and
///   none further ahead than VerifyOptions::unshard_lookahead; REDUCE_GRAD is there for no stage,
///   or once for each stage after its last backward; its wait is there for no stage, or once for
///   each stage after its REDUCE_GRAD;
/// - the parts of an overlap do not need each other;
/// - executed in order, no rank waits for ever, even if nothing is buffered: a RECV only posts,
///   compute waits for its values, and a SEND ends when its receives are posted. In a schedule with
///   waits for sends a SEND only posts, too, and its wait ends when the receives are posted.
///
/// A schedule with misplaced or repeated actions is not examined for deadlocks. Linear in the
/// number of actions. `graph` must have as many stages as the schedule, and a lookahead as many
/// numbers as there are ranks, each of at least 1 (ArgumentError).
Verdict verify(const Schedule& schedule, const StageGraph& graph,
               const VerifyOptions& options = {});
/// For a chain of stages.
Verdict verify(const Schedule& schedule, const VerifyOptions& options = {});

/// Whether the caller has found a schedule good, so that a pass need not verify it again.
enum class Verified : uint8_t { kNo, kYes };

/// ScheduleError with the findings unless the schedule is good; `what` begins the message.
void verify_or_throw(const Schedule& schedule, const StageGraph& graph, std::string_view what,
                     const VerifyOptions& options = {});

}  // namespace stagecraft
