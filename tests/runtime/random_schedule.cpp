#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "tests/runtime/random_model.h"
#include "tests/schedule/random.h"

namespace stagecraft {

namespace {

// Whether an action may come now: all that it needs was done.
class Progress {
 public:
  Progress(const StageGraph& graph, int32_t microbatches)
      : graph_(graph),
        microbatches_(static_cast<std::size_t>(microbatches)),
        forward_(static_cast<std::size_t>(graph.num_stages()) * microbatches_),
        backward_(forward_.size()) {}

  bool is_ready(Action action) const {
    const auto m = action.microbatch();
    if (action.type() == ActionType::kForward) {
      return std::ranges::all_of(graph_.producers(action.stage()),
                                 [&](StageId from) { return forward_[at(from, m)]; });
    }
    if (action.type() == ActionType::kBackwardWeight) return backward_[at(action.stage(), m)];
    return forward_[at(action.stage(), m)] &&
           std::ranges::all_of(graph_.consumers(action.stage()),
                               [&](StageId to) { return backward_[at(to, m)]; });
  }

  void add(Action action) {
    const std::size_t i = at(action.stage(), action.microbatch());
    if (action.type() == ActionType::kForward) forward_[i] = true;
    if (makes_input_gradients(action.type())) backward_[i] = true;
  }

 private:
  std::size_t at(StageId stage, MicrobatchId m) const {
    return static_cast<std::size_t>(stage.value()) * microbatches_ +
           static_cast<std::size_t>(m.value());
  }

  const StageGraph& graph_;
  std::size_t microbatches_;
  std::vector<bool> forward_;
  std::vector<bool> backward_;
};

}  // namespace

Placement make_random_placement(int32_t stages, uint64_t seed) {
  Random random(seed);
  const int32_t ranks = random.between(1, std::min(stages, 4));
  std::vector<std::optional<Rank>> ranks_of;
  // The first `ranks` stages in any order of the ranks, so that none is empty.
  std::vector<int32_t> first(static_cast<std::size_t>(ranks));
  std::iota(first.begin(), first.end(), 0);
  for (std::size_t i = first.size(); i > 1; --i) std::swap(first[i - 1], first[random.below(i)]);
  for (int32_t s = 0; s < stages; ++s) {
    ranks_of.emplace_back(
        Rank(s < ranks ? first[static_cast<std::size_t>(s)] : random.between(0, ranks - 1)));
  }
  return Placement::of(std::move(ranks_of), ranks);
}

Schedule make_random_schedule(const Placement& placement, const StageGraph& graph,
                              int32_t microbatches, uint64_t seed) {
  Random random(seed);
  std::vector<Action> left;
  for (int32_t s = 0; s < placement.num_stages(); ++s) {
    for (int32_t m = 0; m < microbatches; ++m) {
      const Action forward(StageId(s), ActionType::kForward, MicrobatchId(m));
      left.push_back(forward);
      if (random.one_in(2)) {
        left.push_back(forward.with_type(ActionType::kBackward));
      } else {
        left.push_back(forward.with_type(ActionType::kBackwardInput));
        left.push_back(forward.with_type(ActionType::kBackwardWeight));
      }
    }
  }
  Progress progress(graph, microbatches);
  std::vector<ActionList> lists(static_cast<std::size_t>(placement.num_ranks()));
  while (!left.empty()) {
    // One order for all ranks: each follows it, so none can wait for ever.
    std::size_t i = random.below(left.size());
    while (!progress.is_ready(left[i])) i = (i + 1) % left.size();
    progress.add(left[i]);
    lists[static_cast<std::size_t>(placement.get_rank(left[i].stage()).value())].push_back(left[i]);
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return {Level::kCompute, placement, std::move(lists)};
}

}  // namespace stagecraft
