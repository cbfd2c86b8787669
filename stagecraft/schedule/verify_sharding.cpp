#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

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

// The number of stages of the list that may be unsharded at once.
int32_t most_active(const ActionList& list, const VerifyOptions& options) {
  if (!options.max_active_stages) return INT32_MAX;
  int32_t parts = 1;
  for (const Action action : list) {
    parts = std::max(parts, static_cast<int32_t>(action.num_parts()));
  }
  return *options.max_active_stages - 1 + parts;
}

// Whether at least `lookahead` different stages are used after `place` before `stage` is. `used` is
// scratch memory.
bool is_too_early(const ActionList& list, std::size_t place, StageId stage, int32_t lookahead,
                  std::vector<StageId>& used) {
  used.clear();
  for (std::size_t slot = place + 1; slot < list.size();) {
    const std::size_t end = slot + 1 + static_cast<std::size_t>(list[slot].num_parts());
    for (; slot < end && slot < list.size(); ++slot) {
      if (!is_compute(list[slot].type())) continue;
      if (list[slot].stage() == stage) return false;
      if (std::ranges::find(used, list[slot].stage()) == used.end()) {
        used.push_back(list[slot].stage());
      }
    }
    if (std::ssize(used) >= lookahead) return true;
  }
  return false;
}

/// Follows the lists and keeps the state of every stage.
class ShardingVerifier {
 public:
  ShardingVerifier(const Schedule& schedule, const VerifyOptions& options, Findings& findings)
      : schedule_(schedule),
        options_(options),
        is_partial_(options.mode == VerifyMode::kPartial),
        findings_(findings),
        stages_(schedule.num_stages()) {}

  void check() {
    for (rank_ = 0; rank_ < schedule_.lists().size(); ++rank_) {
      const ActionList& list = schedule_.lists()[rank_];
      active_ = 0;
      most_ = most_active(list, options_);
      for (place_ = 0; place_ < list.size(); ++place_) check_action(list[place_]);
    }
    if (!is_partial_) check_end();
  }

 private:
  // Formats the message only if the finding is kept.
  template <typename Text>
  void add(FindingKind kind, Text&& text) {
    findings_.add_at(kind, rank_, place_, std::forward<Text>(text));
  }
  std::string slot(std::size_t place) const { return findings_.slot_text(rank_, place); }

  void check_action(Action action) {
    const ActionType type = action.type();
    if (action.is_idle() || action.is_overlap() || is_transfer(type) || is_send_wait(type)) return;
    const StageId stage = action.stage();
    if (!stages_.contains(stage)) return;
    if (schedule_.placement().ranks()[stage].position() != rank_) return;
    StageState& state = stages_[stage];
    if (is_compute(type)) {
      check_compute(action, state);
    } else if (type == ActionType::kUnshard) {
      check_unshard(stage, state);
    } else if (type == ActionType::kReshard) {
      check_reshard(state);
    } else {
      check_reduction(action, state);
    }
  }

  void check_compute(Action action, StageState& state) {
    if (!state.ever_unsharded) {
      if (state.first_compute == kNone) state.first_compute = place_;
    } else if (!state.is_unsharded) {
      add(FindingKind::kSharding, [&] { return "the stage is resharded here"; });
    }
    if (makes_weight_gradients(action.type()) && state.reduce_grad != kNone) {
      add(FindingKind::kReduceGrad, [&] {
        return fmt::format("comes after {}REDUCE_GRAD, at {}", action.stage().value(),
                           slot(state.reduce_grad));
      });
    }
  }

  void check_unshard(StageId stage, StageState& state) {
    const std::vector<int32_t>& lookahead = options_.unshard_lookahead;
    if (!lookahead.empty() &&
        is_too_early(schedule_.lists()[rank_], place_, stage, lookahead[rank_], used_)) {
      add(FindingKind::kSharding, [&] {
        return fmt::format("the stage is unsharded further ahead than a lookahead of {}",
                           lookahead[rank_]);
      });
    }
    if (state.is_unsharded) {
      add(FindingKind::kSharding, [&] {
        return fmt::format("the stage is unsharded already, since {}", slot(state.last_unshard));
      });
    }
    if (!state.ever_unsharded && state.first_compute != kNone && !is_partial_) {
      findings_.add_at(FindingKind::kSharding, rank_, state.first_compute, [&] {
        return fmt::format("comes before the stage is unsharded, at {}", slot(place_));
      });
    }
    if (!state.is_unsharded && ++active_ > most_) {
      add(FindingKind::kSharding, [&] {
        return fmt::format("{} stages would be unsharded at once, at most {} may be", active_,
                           most_);
      });
    }
    state.ever_unsharded = state.is_unsharded = true;
    state.last_unshard = place_;
  }

  void check_reshard(StageState& state) {
    if (!state.is_unsharded && !(is_partial_ && !state.ever_unsharded)) {
      add(FindingKind::kSharding, [&] { return "the stage is not unsharded here"; });
    }
    if (state.is_unsharded) --active_;
    state.ever_unsharded = true;
    state.is_unsharded = false;
  }

  // REDUCE_GRAD and its wait.
  void check_reduction(Action action, StageState& state) {
    const bool is_wait = action.type() == ActionType::kWaitReduceGrad;
    std::size_t& earlier = is_wait ? state.wait : state.reduce_grad;
    (is_wait ? any_wait_ : any_reduce_grad_) = true;
    if (earlier != kNone) {
      add(FindingKind::kReduceGrad,
          [&] { return fmt::format("comes a second time; first at {}", slot(earlier)); });
    } else if (is_wait && state.reduce_grad == kNone && !is_partial_) {
      add(FindingKind::kReduceGrad, [&] {
        return fmt::format("there is no earlier {}REDUCE_GRAD to wait for", action.stage().value());
      });
    } else if (!is_wait && state.wait != kNone && is_partial_) {
      add(FindingKind::kReduceGrad,
          [&] { return fmt::format("comes after its wait, at {}", slot(state.wait)); });
    }
    earlier = place_;
  }

  void check_end() {
    const auto missing = [] { return "is missing, but other stages have it"; };
    for (StageId stage(0); stages_.contains(stage); ++stage) {
      const StageState& state = stages_[stage];
      const Rank rank = schedule_.placement().ranks()[stage];
      if (state.is_unsharded) {
        findings_.add_at(FindingKind::kSharding, rank.position(), state.last_unshard,
                         [&] { return "the stage is never resharded"; });
      }
      if (any_reduce_grad_ && state.reduce_grad == kNone && rank != Placement::kNowhere) {
        findings_.add(FindingKind::kReduceGrad, fmt::format("{}REDUCE_GRAD", stage.value()),
                      missing);
      }
      if (any_wait_ && state.reduce_grad != kNone && state.wait == kNone) {
        findings_.add(FindingKind::kReduceGrad, fmt::format("{}WAIT_REDUCE_GRAD", stage.value()),
                      missing);
      }
    }
  }

  const Schedule& schedule_;
  const VerifyOptions& options_;
  const bool is_partial_;
  Findings& findings_;
  IndexedVector<StageId, StageState> stages_;
  bool any_reduce_grad_ = false;
  bool any_wait_ = false;
  std::size_t rank_ = 0;   // of the current list
  std::size_t place_ = 0;  // of the current action in the list
  int32_t active_ = 0;     // stages of the list that are unsharded
  int32_t most_ = 0;       // of them that may be
  std::vector<StageId> used_;
};

}  // namespace

void verify_sharding(const Schedule& schedule, const VerifyOptions& options, Findings& findings) {
  ShardingVerifier(schedule, options, findings).check();
}

}  // namespace stagecraft
