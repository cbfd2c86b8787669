#include "stagecraft/plan/reorder.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "stagecraft/plan/synthesise.h"

namespace stagecraft {
namespace {

/// The most swaps to try without a deadline (the result must not depend on time), and with one.
constexpr int32_t kSwaps = 60;
constexpr int32_t kMostSwaps = 5000;

/// The order with small microbatches first and last, and the largest in the middle.
std::vector<int32_t> hill(const std::vector<int32_t>& ascending) {
  std::vector<int32_t> front;
  std::vector<int32_t> back;
  for (std::size_t i = 0; i < ascending.size(); ++i) {
    (i % 2 == 0 ? front : back).push_back(ascending[i]);
  }
  front.insert(front.end(), back.rbegin(), back.rend());
  return front;
}

}  // namespace

std::vector<int32_t> order_microbatches(const StageComposer& composer, const PlanChoice& choice,
                                        uint64_t seed, const SearchLimit& limit) {
  const std::vector<double>& sizes = composer.problem().sizes;
  ScheduleProblem problem = composer.compose(choice);
  const auto score = [&](const std::vector<int32_t>& order) {
    for (std::size_t k = 0; k < order.size(); ++k) {
      problem.sizes[k] = sizes[static_cast<std::size_t>(order[k])];
    }
    return quick_score(problem).value_or(std::numeric_limits<double>::infinity());
  };
  std::vector<int32_t> given(sizes.size());
  std::iota(given.begin(), given.end(), 0);
  std::vector<int32_t> ascending = given;
  std::stable_sort(ascending.begin(), ascending.end(), [&](int32_t a, int32_t b) {
    return sizes[static_cast<std::size_t>(a)] < sizes[static_cast<std::size_t>(b)];
  });
  const std::vector<int32_t> descending(ascending.rbegin(), ascending.rend());
  std::vector<int32_t> best = given;
  double best_score = score(best);
  const auto offer = [&](std::vector<int32_t> order) {
    const double value = score(order);
    if (value >= best_score * (1 - 1e-9)) return;
    best_score = value;
    best = std::move(order);
  };
  for (const std::vector<int32_t>& order : {ascending, descending, hill(ascending)}) {
    if (!limit.reached()) offer(order);
  }
  std::mt19937_64 random(seed);
  const int32_t swaps = limit.deadline ? kMostSwaps : kSwaps;
  for (int32_t i = 0; i < swaps && !limit.reached(); ++i) {
    std::vector<int32_t> order = best;
    std::swap(order[random() % order.size()], order[random() % order.size()]);
    offer(std::move(order));
  }
  return best;
}

Schedule renumber_microbatches(const Schedule& schedule, const std::vector<int32_t>& order) {
  std::vector<ActionList> lists;
  for (const ActionList& list : schedule.lists()) {
    ActionList& renamed = lists.emplace_back();
    for (const Action action : list) {
      renamed.push_back(is_compute(action.type())
                            ? Action(action.stage(), action.type(),
                                     MicrobatchId(order[action.microbatch().position()]))
                            : action);
    }
  }
  return {schedule.level(), schedule.placement(), std::move(lists)};
}

}  // namespace stagecraft
