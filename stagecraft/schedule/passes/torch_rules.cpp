#include "stagecraft/schedule/passes/torch_rules.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>
#include <span>
#include <vector>

#include "stagecraft/base/check.h"
#include "stagecraft/schedule/passes/pass_input.h"

namespace stagecraft {
namespace {

using Refusal = std::optional<std::string>;

std::string name_of(const StageEdge& edge) {
  return fmt::format("{}-{}", edge.from.value(), edge.to.value());
}

Refusal refuse_graph(const StageGraph& graph) {
  const StageGraph chain = StageGraph::chain(std::max(graph.num_stages(), 1));
  const std::span<const StageEdge> edges = graph.edges();
  const std::span<const StageEdge> usual = chain.edges();
  for (const StageEdge& edge : edges) {
    if (std::find(usual.begin(), usual.end(), edge) == usual.end()) {
      return fmt::format(
          "a stage sends to the next stage only, but the stage graph has the edge {}",
          name_of(edge));
    }
  }
  for (const StageEdge& edge : usual) {
    if (std::find(edges.begin(), edges.end(), edge) == edges.end()) {
      return fmt::format(
          "every stage sends to the next stage, but the stage graph lacks the edge {}",
          name_of(edge));
    }
  }
  return std::nullopt;
}

// torch counts the microbatches of each stage when it loads a schedule.
Refusal refuse_counts(const Schedule& schedule) {
  std::vector<std::array<int32_t, 4>> counts(static_cast<std::size_t>(schedule.num_stages()));
  for (const ActionList& list : schedule.lists()) {
    for (const Action action : list) {
      if (!is_compute(action.type())) continue;
      ++counts[action.stage().position()][static_cast<std::size_t>(action.type())];
    }
  }
  const int32_t microbatches = schedule.num_microbatches();
  for (std::size_t s = 0; s < counts.size(); ++s) {
    const auto count = [&](ActionType type) { return counts[s][static_cast<std::size_t>(type)]; };
    const int32_t forwards = count(ActionType::kForward);
    const int32_t inputs = count(ActionType::kBackwardInput);
    const int32_t backwards = count(ActionType::kBackward) + inputs;
    if (forwards == microbatches && backwards == microbatches &&
        count(ActionType::kBackwardWeight) == inputs) {
      continue;
    }
    return fmt::format(
        "every stage trains every microbatch, but of {} microbatches stage {} has {} forwards and "
        "{} backwards",
        microbatches, s, forwards, backwards);
  }
  return std::nullopt;
}

// torch appends the output of each forward of the last stage to a list, and its backwards index
// that list with the microbatch.
Refusal refuse_order_of_last_stage(const Schedule& schedule) {
  const StageId last(schedule.num_stages() - 1);
  int32_t next = 0;
  for (const Action action : schedule.actions(schedule.placement().get_rank(last))) {
    if (action.type() != ActionType::kForward || action.stage() != last) continue;
    if (action.microbatch().value() != next) {
      return fmt::format(
          "the forwards of the last stage have ascending microbatches, but {} comes where {}F{} is "
          "expected",
          to_string(action), last.value(), next);
    }
    ++next;
  }
  return std::nullopt;
}

Refusal refuse_reductions(const Schedule& schedule) {
  for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
    std::optional<StageId> pending;
    for (const Action action : schedule.actions(rank)) {
      if (action.type() == ActionType::kReduceGrad) {
        if (pending) {
          return fmt::format(
              "a rank waits for a reduction before it begins the next one, but rank {} begins "
              "{} while the reduction of stage {} is not complete",
              rank.value(), to_string(action), pending->value());
        }
        pending = action.stage();
      } else if (action.type() == ActionType::kWaitReduceGrad) {
        pending.reset();
      }
    }
    if (pending) {
      return fmt::format(
          "every REDUCE_GRAD has a WAIT_REDUCE_GRAD, but rank {} does not wait for "
          "the reduction of stage {}",
          rank.value(), pending->value());
    }
  }
  return std::nullopt;
}

Refusal refuse_active_stages(const Schedule& schedule, int32_t max_active_stages) {
  for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
    for (const Slot& slot : schedule.slots(rank)) {
      std::set<StageId> stages;
      for (const Action part : slot.parts()) stages.insert(part.stage());
      if (static_cast<int32_t>(stages.size()) <= max_active_stages) continue;
      return fmt::format(
          "as many stages are active as one action needs, but {} of rank {} needs "
          "{}, and max_active_stages is {}",
          to_string(slot), rank.value(), stages.size(), max_active_stages);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> find_torch_refusal(const Schedule& schedule, const StageGraph& graph,
                                              const LowerOptions& options) {
  require_level(schedule, Level::kLowered, "find_torch_refusal");
  require<ArgumentError>(options.target != LowerTarget::kStagecraft,
                         "find_torch_refusal: expected a torch as the target");
  Refusal refusal = refuse_graph(graph);
  if (!refusal) refusal = refuse_counts(schedule);
  if (!refusal) refusal = refuse_order_of_last_stage(schedule);
  if (options.target == LowerTarget::kTorch215) {
    if (!refusal) refusal = refuse_reductions(schedule);
    if (!refusal) refusal = refuse_active_stages(schedule, options.max_active_stages);
  }
  if (refusal)
    refusal = fmt::format("{} does not take it: there, {}", to_string(options.target), *refusal);
  return refusal;
}

}  // namespace stagecraft
