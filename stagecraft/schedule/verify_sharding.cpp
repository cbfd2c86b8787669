#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "stagecraft/base/indexed_vector.h"
#include "stagecraft/schedule/verify_parts.h"

namespace stagecraft {
namespace {

constexpr std::size_t kNone = SIZE_MAX;

// The state of one stage so far.
struct StageState {
  std::size_t first_compute = kNone;  // before any UNSHARD
  std::size_t last_unshard = kNone;
  std::size_t reduce_grad = kNone;
  std::size_t wait = kNone;  // for REDUCE_GRAD
  bool ever_unsharded = false;
  bool is_unsharded = false;
};

// How many stages of the list may be unsharded at once.
int32_t most_active(const ActionList& list, const VerifyOptions& options) {
  if (!options.max_active_stages) return INT32_MAX;
  int32_t parts = 1;
  for (const Action action : list) {
    parts = std::max(parts, static_cast<int32_t>(action.num_parts()));
  }
  return *options.max_active_stages - 1 + parts;
}

}  // namespace

void verify_sharding(const Schedule& schedule, const VerifyOptions& options, Findings& findings) {
  const std::span<const int32_t> rank_of = schedule.placement().ranks();
  const bool is_partial = options.mode == VerifyMode::kPartial;
  IndexedVector<StageId, StageState> stages(schedule.num_stages());
  bool any_reduce_grad = false;
  bool any_wait = false;

  for (std::size_t r = 0; r < schedule.lists().size(); ++r) {
    const ActionList& list = schedule.lists()[r];
    int32_t active = 0;
    const int32_t most = most_active(list, options);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Action action = list[i];
      const ActionType type = action.type();
      if (action.is_idle() || action.is_overlap() || is_transfer(type) || is_send_wait(type)) {
        continue;
      }
      const StageId stage = action.stage();
      if (!stages.contains(stage)) continue;
      if (rank_of[stage.position()] != static_cast<int32_t>(r)) continue;
      StageState& state = stages[stage];
      if (is_compute(type)) {
        if (!state.ever_unsharded) {
          if (state.first_compute == kNone) state.first_compute = i;
        } else if (!state.is_unsharded) {
          findings.add_at(FindingKind::kSharding, r, i,
                          [&] { return "the stage is resharded here"; });
        }
        if (makes_weight_gradients(type) && state.reduce_grad != kNone) {
          findings.add_at(FindingKind::kReduceGrad, r, i, [&] {
            return fmt::format("comes after {}REDUCE_GRAD, at {}", stage.value(),
                               findings.slot_text(r, state.reduce_grad));
          });
        }
      } else if (type == ActionType::kUnshard) {
        if (state.is_unsharded) {
          findings.add_at(FindingKind::kSharding, r, i, [&] {
            return fmt::format("the stage is unsharded already, since {}",
                               findings.slot_text(r, state.last_unshard));
          });
        }
        if (!state.ever_unsharded && state.first_compute != kNone && !is_partial) {
          findings.add_at(FindingKind::kSharding, r, state.first_compute, [&] {
            return fmt::format("comes before the stage is unsharded, at {}",
                               findings.slot_text(r, i));
          });
        }
        if (!state.is_unsharded && ++active > most) {
          findings.add_at(FindingKind::kSharding, r, i, [&] {
            return fmt::format("{} stages would be unsharded at once, at most {} may be", active,
                               most);
          });
        }
        state.ever_unsharded = state.is_unsharded = true;
        state.last_unshard = i;
      } else if (type == ActionType::kReshard) {
        if (!state.is_unsharded && !(is_partial && !state.ever_unsharded)) {
          findings.add_at(FindingKind::kSharding, r, i,
                          [&] { return "the stage is not unsharded here"; });
        }
        if (state.is_unsharded) --active;
        state.ever_unsharded = true;
        state.is_unsharded = false;
      } else {
        const bool is_wait = type == ActionType::kWaitReduceGrad;
        std::size_t& earlier = is_wait ? state.wait : state.reduce_grad;
        (is_wait ? any_wait : any_reduce_grad) = true;
        if (earlier != kNone) {
          findings.add_at(FindingKind::kReduceGrad, r, i, [&] {
            return fmt::format("comes a second time; first at {}", findings.slot_text(r, earlier));
          });
        } else if (is_wait && state.reduce_grad == kNone && !is_partial) {
          findings.add_at(FindingKind::kReduceGrad, r, i, [&] {
            return fmt::format("there is no earlier {}REDUCE_GRAD to wait for", stage.value());
          });
        } else if (!is_wait && state.wait != kNone && is_partial) {
          findings.add_at(FindingKind::kReduceGrad, r, i, [&] {
            return fmt::format("comes after its wait, at {}", findings.slot_text(r, state.wait));
          });
        }
        earlier = i;
      }
    }
  }
  if (is_partial) return;
  for (StageId stage(0); stages.contains(stage); ++stage) {
    const int32_t rank = rank_of[stage.position()];
    if (stages[stage].is_unsharded) {
      findings.add_at(FindingKind::kSharding, static_cast<std::size_t>(rank),
                      stages[stage].last_unshard, [&] { return "the stage is never resharded"; });
    }
    if (any_reduce_grad && stages[stage].reduce_grad == kNone && rank >= 0) {
      findings.add(FindingKind::kReduceGrad, fmt::format("{}REDUCE_GRAD", stage.value()),
                   [&] { return "is missing, but other stages have it"; });
    }
    if (any_wait && stages[stage].reduce_grad != kNone && stages[stage].wait == kNone) {
      findings.add(FindingKind::kReduceGrad, fmt::format("{}WAIT_REDUCE_GRAD", stage.value()),
                   [&] { return "is missing, but other stages have it"; });
    }
  }
}

}  // namespace stagecraft
