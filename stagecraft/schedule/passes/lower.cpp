#include "stagecraft/schedule/passes/lower.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "stagecraft/base/check.h"
#include "stagecraft/schedule/passes/add_transfers.h"
#include "stagecraft/schedule/passes/limit_sends.h"
#include "stagecraft/schedule/passes/pass_input.h"
#include "stagecraft/schedule/passes/place_receives.h"
#include "stagecraft/schedule/passes/reduce_grads.h"

namespace stagecraft {
namespace {

constexpr std::array<std::string_view, 3> kTargets = {"stagecraft", "torch-2.13", "torch-2.15"};

void check_target(const LowerOptions& options) {
  const bool is_torch = options.target != LowerTarget::kStagecraft;
  require<ArgumentError>(!is_torch || !options.prefetch,
                         "lower: prefetch is not for {}, which matches transfers by their order",
                         to_string(options.target));
  if (options.target != LowerTarget::kTorch213) return;
  require<ArgumentError>(!options.reduction_wait && !options.max_sends,
                         "lower: {} has no waits, so reduction_wait and max_sends are not for it",
                         to_string(options.target));
  require<ArgumentError>(options.unshard_lookahead == UnshardLookahead(Lookahead::kFull),
                         "lower: {} unshards as many stages as may be active, so "
                         "unshard_lookahead is not for it",
                         to_string(options.target));
}

// An option that would have no effect is an error.
void check_input(const Schedule& schedule, const LowerOptions& options) {
  const bool has_sharding = options.max_active_stages != kDefaultActiveStages ||
                            options.unshard_lookahead != UnshardLookahead(Lookahead::kFull);
  require<ArgumentError>(
      !has_sharding || !has_any(schedule, {ActionType::kUnshard, ActionType::kReshard}),
      "lower: the schedule has UNSHARD or RESHARD already, so max_active_stages and "
      "unshard_lookahead have no effect on it");
  require<ArgumentError>(
      !options.reduction_wait || !has_any(schedule, {ActionType::kWaitReduceGrad}),
      "lower: the schedule has WAIT_REDUCE_GRAD already, so reduction_wait has no effect on it");
}

// For torch 2.13, which has no WAIT_REDUCE_GRAD.
Schedule drop_reduction_waits(const Schedule& schedule) {
  std::vector<ActionList> lists = schedule.lists();
  for (ActionList& list : lists) {
    std::erase_if(list, [](Action action) { return action.type() == ActionType::kWaitReduceGrad; });
  }
  return {schedule.level(), schedule.placement(), std::move(lists)};
}

// Carries a schedule through passes and verifies it after each.
class Lowering {
 public:
  Lowering(const Schedule& schedule, const StageGraph& graph, VerifyOptions options)
      : current_(schedule), graph_(graph), options_(std::move(options)) {
    verify_or_throw(current_, graph_, "the schedule cannot be lowered", options_);
  }

  template <typename Pass>
  void apply(std::string_view name, Pass&& pass) {
    current_ = pass(std::as_const(current_));
    verify_or_throw(current_, graph_, name, options_);
    options_.unshard_lookahead.clear();
  }

  void limit_active_stages(int32_t most) { options_.max_active_stages = most; }
  /// Sets the lookahead that the next pass is verified against. Later passes do not move UNSHARD.
  void limit_lookahead(std::vector<int32_t> lookahead) {
    options_.unshard_lookahead = std::move(lookahead);
  }

  const Schedule& current() const { return current_; }
  Schedule take() { return std::move(current_); }

 private:
  Schedule current_;
  const StageGraph& graph_;
  VerifyOptions options_;
};

}  // namespace

std::string_view to_string(LowerTarget target) {
  return kTargets[static_cast<std::size_t>(target)];
}

std::optional<LowerTarget> find_lower_target(std::string_view name) {
  for (std::size_t i = 0; i < kTargets.size(); ++i) {
    if (kTargets[i] == name) return static_cast<LowerTarget>(i);
  }
  return std::nullopt;
}

Schedule lower(const Schedule& schedule, const StageGraph& graph, const LowerOptions& options) {
  require_level(schedule, Level::kCompute, "lower");
  check_target(options);
  check_input(schedule, options);
  const bool is_torch_215 = options.target == LowerTarget::kTorch215;
  Lowering lowering(schedule, graph, {.mode = options.mode.value_or(infer_mode(schedule))});
  if (options.shard && !has_any(schedule, {ActionType::kUnshard, ActionType::kReshard})) {
    lowering.limit_active_stages(options.max_active_stages);
    lowering.limit_lookahead(resolve_lookahead(options.unshard_lookahead, schedule.num_ranks(),
                                               options.max_active_stages));
    lowering.apply("after shard_stages", [&](const Schedule& current) {
      return shard_stages(current, options.max_active_stages, options.unshard_lookahead);
    });
  }
  if (options.reduce_grads && !has_any(schedule, {ActionType::kReduceGrad})) {
    lowering.apply("after reduce_grads", reduce_grads);
  }
  const bool has_waits = has_any(schedule, {ActionType::kWaitReduceGrad});
  if (has_waits && options.target == LowerTarget::kTorch213) {
    lowering.apply("without WAIT_REDUCE_GRAD", drop_reduction_waits);
  } else if (!has_waits && (is_torch_215 || options.reduction_wait)) {
    lowering.apply("after add_reduction_waits", [&](const Schedule& current) {
      return add_reduction_waits(current, options.reduction_wait.value_or(ReductionWait::kAtOnce));
    });
  }
  lowering.apply("after add_transfers", [&](const Schedule& current) {
    return add_transfers(current, graph, Verified::kYes);
  });
  if (is_torch_215) lowering.apply("after add_send_waits", add_send_waits);
  if (options.prefetch) {
    lowering.apply("after place_receives", [&](const Schedule& current) {
      return place_receives(current, *options.prefetch, graph, Verified::kYes);
    });
  }
  if (options.max_sends) {
    lowering.apply("after limit_sends", [&](const Schedule& current) {
      return limit_sends(current, *options.max_sends, graph);
    });
  }
  return lowering.take();
}

Schedule lower(const Schedule& schedule, const LowerOptions& options) {
  return lower(schedule, StageGraph::chain(std::max(schedule.num_stages(), 1)), options);
}

}  // namespace stagecraft
