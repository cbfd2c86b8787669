#include "stagecraft/plan/word.h"

#include <algorithm>
#include <utility>

namespace stagecraft::plan {
namespace {

// The most memory that a rank needs while it runs a word.
double peak_of(const Instance& in, const Word& word) {
  double held = 0;
  double peak = 0;
  for (const Op& op : word) {
    peak = std::max(peak, held + in.need[op.kind][op.stage]);
    held += in.delta[op.kind][op.stage];
  }
  return peak;
}

Word one_microbatch(const Instance& in, int32_t rank, bool at_once) {
  Word word;
  Word rest;
  const std::vector<int32_t>& on = in.on[rank];
  for (const int32_t s : on) word.emplace_back(kF, s, 0);
  for (std::size_t i = on.size(); i-- > 0;) {
    word.emplace_back(kI, on[i], 0);
    if (in.is_split[on[i]]) (at_once ? word : rest).emplace_back(kW, on[i], 0);
  }
  word.insert(word.end(), rest.begin(), rest.end());
  return word;
}

}  // namespace

void renumber(const Instance& in, Word& word) {
  std::vector<int32_t> next(static_cast<std::size_t>(kKinds) * in.stages, 0);
  for (Op& op : word) op.m = next[op.kind * in.stages + op.stage]++;
}

Words sequential_words(const Instance& in) {
  Words words;
  for (int32_t r = 0; r < in.ranks; ++r) {
    Word one = one_microbatch(in, r, true);
    Word late = one_microbatch(in, r, false);
    if (peak_of(in, late) < peak_of(in, one)) one = std::move(late);
    Word word;
    for (int32_t m = 0; m < in.microbatches; ++m) {
      for (Op op : one) {
        op.m = m;
        word.push_back(op);
      }
    }
    words.push_back(std::move(word));
  }
  return words;
}

Schedule to_schedule(const ScheduleProblem& problem, const Words& words) {
  std::vector<ActionList> lists;
  for (const Word& word : words) {
    ActionList& list = lists.emplace_back();
    for (const Op& op : word) {
      const auto stage = static_cast<int32_t>(op.stage);
      ActionType type = ActionType::kForward;
      if (op.kind == kW) type = ActionType::kBackwardWeight;
      if (op.kind == kI) {
        type =
            problem.stages[op.stage].is_split ? ActionType::kBackwardInput : ActionType::kBackward;
      }
      list.emplace_back(StageId(stage), type, MicrobatchId(op.m));
    }
  }
  return {Level::kCompute, problem.placement, std::move(lists)};
}

std::optional<Words> to_words(const Instance& in, const Schedule& schedule) {
  if (schedule.num_ranks() != in.ranks || schedule.num_stages() != in.stages ||
      schedule.num_microbatches() != in.microbatches) {
    return std::nullopt;
  }
  const auto& ranks = schedule.placement().ranks();
  const bool is_same = std::equal(ranks.begin(), ranks.end(), in.rank_of.begin(),
                                  [](Rank rank, int32_t own) { return rank.value() == own; });
  if (!is_same) return std::nullopt;
  Words words;
  for (int32_t r = 0; r < in.ranks; ++r) {
    Word word;
    for (const Action action : schedule.lists()[r]) {
      if (!is_compute(action.type())) continue;
      const int32_t s = action.stage().value();
      const int32_t m = action.microbatch().value();
      const bool is_split = in.is_split[s] != 0;
      if (action.type() == ActionType::kForward) {
        word.emplace_back(kF, s, m);
        continue;
      }
      if (makes_input_gradients(action.type())) word.emplace_back(kI, s, m);
      if (is_split && makes_weight_gradients(action.type())) word.emplace_back(kW, s, m);
    }
    if (static_cast<int64_t>(word.size()) != in.actions_of(r)) return std::nullopt;
    renumber(in, word);
    words.push_back(std::move(word));
  }
  return words;
}

}  // namespace stagecraft::plan
