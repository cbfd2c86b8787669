#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "stagecraft/schedule/passes/add_waits.h"
#include "stagecraft/schedule/passes/shard_stages.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/schedule/verify.h"

namespace stagecraft {

/// The runtime that a lowered schedule is made for.
enum class LowerTarget : uint8_t {
  kStagecraft,  ///< this library: the lists have waits only if an option needs them
  kTorch213,    ///< torch 2.13: exactly its lists. 2.13 and 2.14 do not know waits.
  kTorch215,    ///< torch 2.15: exactly its lists. It refuses lists without waits.
};

/// "stagecraft", "torch-2.13" or "torch-2.15".
std::string_view to_string(LowerTarget target);
std::optional<LowerTarget> find_lower_target(std::string_view name);

/// The passes that `lower` runs, and their options.
struct LowerOptions {
  LowerTarget target = LowerTarget::kStagecraft;
  bool shard = true;  ///< UNSHARD and RESHARD (unless they are there already)
  int32_t max_active_stages = kDefaultActiveStages;
  UnshardLookahead unshard_lookahead = Lookahead::kFull;  ///< not for torch 2.13
  bool reduce_grads = true;  ///< REDUCE_GRAD (unless it is there already)
  /// WAIT_REDUCE_GRAD (unless it is there already). Without a value: at once for torch 2.15,
  /// otherwise none. Not for torch 2.13.
  std::optional<ReductionWait> reduction_wait = std::nullopt;
  /// Move receives to `prefetch` slots of compute before their use. Without a value, they stay
  /// where add_transfers puts them. Not for torch, which matches transfers by their order.
  std::optional<int32_t> prefetch = std::nullopt;
  /// The most outstanding sends of a rank (limit_sends). Not for torch 2.13.
  std::optional<int32_t> max_sends = std::nullopt;
  /// What the schedule has to be complete for. Without a value, infer_mode decides.
  std::optional<VerifyMode> mode = std::nullopt;
};

/// Makes a lowered schedule. Runs those of shard_stages, reduce_grads, add_reduction_waits,
/// add_transfers, add_send_waits, place_receives and limit_sends that `options` select. Verifies
/// the schedule before the first pass and after each (ScheduleError).
///
/// If the target is a torch, find_torch_refusal (torch_rules.h) says whether that torch accepts the
/// result.
///
/// ArgumentError unless the level is kCompute and the target has all options, and if an option has
/// no effect, such as max_active_stages for a schedule that has UNSHARD already.
Schedule lower(const Schedule& schedule, const StageGraph& graph, const LowerOptions& options = {});
/// For a chain of stages.
Schedule lower(const Schedule& schedule, const LowerOptions& options = {});

}  // namespace stagecraft
