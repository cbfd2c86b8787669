#include "stagecraft/schedule/passes/lower.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "stagecraft/schedule/passes/add_transfers.h"
#include "stagecraft/schedule/passes/pass_input.h"
#include "stagecraft/schedule/passes/place_receives.h"
#include "stagecraft/schedule/passes/reduce_grads.h"

namespace stagecraft {
namespace {

// Carries a schedule through passes and verifies it after each.
class Lowering {
 public:
  Lowering(const Schedule& schedule, const StageGraph& graph, VerifyOptions options)
      : current_(schedule), graph_(graph), options_(options) {
    verify_or_throw(current_, graph_, "the schedule cannot be lowered", options_);
  }

  template <typename Pass>
  void apply(std::string_view name, Pass&& pass) {
    current_ = pass(std::as_const(current_));
    verify_or_throw(current_, graph_, name, options_);
  }

  const Schedule& current() const { return current_; }
  Schedule take() { return std::move(current_); }

 private:
  Schedule current_;
  const StageGraph& graph_;
  VerifyOptions options_;
};

}  // namespace

Schedule lower(const Schedule& schedule, const StageGraph& graph, const LowerOptions& options) {
  require_level(schedule, Level::kCompute, "lower");
  Lowering lowering(schedule, graph, {.mode = options.mode.value_or(infer_mode(schedule))});
  if (options.shard && !has_any(schedule, {ActionType::kUnshard, ActionType::kReshard})) {
    lowering.apply("after shard_stages", [&](const Schedule& current) {
      return shard_stages(current, options.max_active_stages);
    });
  }
  if (options.reduce_grads && !has_any(schedule, {ActionType::kReduceGrad})) {
    lowering.apply("after reduce_grads", reduce_grads);
  }
  lowering.apply("after add_transfers", [&](const Schedule& current) {
    return add_transfers(current, graph, Verified::kYes);
  });
  if (options.prefetch) {
    lowering.apply("after place_receives", [&](const Schedule& current) {
      return place_receives(current, *options.prefetch, graph, Verified::kYes);
    });
  }
  return lowering.take();
}

Schedule lower(const Schedule& schedule, const LowerOptions& options) {
  return lower(schedule, StageGraph::chain(std::max(schedule.num_stages(), 1)), options);
}

}  // namespace stagecraft
