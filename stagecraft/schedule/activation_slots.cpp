#include "stagecraft/schedule/activation_slots.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <utility>

#include "stagecraft/base/check.h"

namespace stagecraft {
namespace {

constexpr int64_t kNever = -1;

struct Lifetime {
  int64_t first = kNever;  // F
  int64_t input = kNever;  // I
  int64_t last = kNever;   // B or W
};
using Lifetimes = std::map<std::pair<StageId, MicrobatchId>, Lifetime>;

void check_stages(const Schedule& schedule, Rank rank, std::span<const StageId> stages) {
  schedule.actions(rank);  // refuses a rank that does not exist
  require<ArgumentError>(!stages.empty(), "activation_slots: expected at least 1 stage, got none");
  for (auto stage = stages.begin(); stage != stages.end(); ++stage) {
    require<ArgumentError>(schedule.placement().find_rank(*stage) == rank,
                           "activation_slots: stage {} is not on rank {}", stage->value(),
                           rank.value());
    require<ArgumentError>(std::find(stages.begin(), stage, *stage) == stage,
                           "activation_slots: stage {} is given twice", stage->value());
  }
}

void add_compute(Lifetimes& lifetimes, Action action, int64_t position) {
  Lifetime& life = lifetimes[{action.stage(), action.microbatch()}];
  const auto set = [&](int64_t& entry) {
    require<ArgumentError>(entry == kNever, "activation_slots: {} comes a second time, at slot {}",
                           to_string(action), position);
    entry = position;
  };
  switch (action.type()) {
    case ActionType::kForward:
      require<ArgumentError>(life.last == kNever,
                             "activation_slots: {} comes after its backward, at slot {}",
                             to_string(action), position);
      return set(life.first);
    case ActionType::kBackwardInput:
      return set(life.input);
    case ActionType::kBackwardWeight:
      require<ArgumentError>(life.input != kNever, "activation_slots: {} comes without its I",
                             to_string(action));
      [[fallthrough]];
    default:
      return set(life.last);
  }
}

Lifetimes find_lifetimes(const Schedule& schedule, Rank rank, std::span<const StageId> stages) {
  Lifetimes lifetimes;
  for (const Slot& slot : schedule.slots(rank)) {
    for (const Action part : slot.parts()) {
      if (!is_compute(part.type())) continue;
      if (std::find(stages.begin(), stages.end(), part.stage()) == stages.end()) continue;
      add_compute(lifetimes, part, slot.position());
    }
  }
  for (const StageId stage : stages) {
    for (MicrobatchId m(0); m.value() < schedule.num_microbatches(); ++m) {
      const auto found = lifetimes.find({stage, m});
      const bool is_complete =
          found != lifetimes.end() && found->second.first != kNever && found->second.last != kNever;
      require<ArgumentError>(is_complete,
                             "activation_slots: stage {} lacks the F, or the B or W, of "
                             "microbatch {}",
                             stage.value(), m.value());
    }
  }
  return lifetimes;
}

struct Span {
  int64_t first = 0;
  int64_t last = 0;
};

// The lowest free slot for each span, in the order of their begins.
std::vector<int32_t> assign_slots(const std::vector<Span>& spans) {
  std::vector<std::size_t> order(spans.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(spans[a].first, spans[a].last) < std::pair(spans[b].first, spans[b].last);
  });
  std::vector<int32_t> slots(spans.size());
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> free;
  using Ending = std::pair<int64_t, int32_t>;
  std::priority_queue<Ending, std::vector<Ending>, std::greater<>> alive;  // end and slot
  int32_t used = 0;
  for (const std::size_t i : order) {
    while (!alive.empty() && alive.top().first < spans[i].first) {
      free.push(alive.top().second);
      alive.pop();
    }
    if (free.empty()) {
      slots[i] = used++;
    } else {
      slots[i] = free.top();
      free.pop();
    }
    alive.emplace(spans[i].last, slots[i]);
  }
  return slots;
}

}  // namespace

ActivationSlots::ActivationSlots(std::vector<Activation> activations)
    : activations_(std::move(activations)) {
  for (const Activation& activation : activations_) {
    num_slots_ = std::max(num_slots_, activation.slot + 1);
  }
}

const ActivationSlots::Activation& ActivationSlots::get(StageId stage,
                                                        MicrobatchId microbatch) const {
  const auto found =
      std::lower_bound(activations_.begin(), activations_.end(), std::pair(stage, microbatch),
                       [](const Activation& each, const auto& wanted) {
                         return std::pair(each.stage, each.microbatch) < wanted;
                       });
  require<ArgumentError>(
      found != activations_.end() && found->stage == stage && found->microbatch == microbatch,
      "there is no activation of stage {} and microbatch {}", stage.value(), microbatch.value());
  return *found;
}

ActivationSlots activation_slots(const Schedule& schedule, Rank rank,
                                 std::span<const StageId> stages, SlotGranularity granularity) {
  check_stages(schedule, rank, stages);
  const Lifetimes lifetimes = find_lifetimes(schedule, rank, stages);
  const bool is_shared = granularity == SlotGranularity::kMicrobatch;
  std::vector<Span> spans;
  std::vector<ActivationSlots::Activation> activations;
  for (const auto& [pair, life] : lifetimes) {
    const auto m = pair.second.position();
    if (!is_shared || m >= spans.size()) {
      spans.push_back({life.first, life.last});
    } else {
      spans[m] = {std::min(spans[m].first, life.first), std::max(spans[m].last, life.last)};
    }
    activations.push_back({.stage = pair.first, .microbatch = pair.second});
  }
  const std::vector<int32_t> slots = assign_slots(spans);
  for (std::size_t i = 0; i < activations.size(); ++i) {
    const std::size_t buffer = is_shared ? activations[i].microbatch.position() : i;
    activations[i].slot = slots[buffer];
    activations[i].first = spans[buffer].first;
    activations[i].last = spans[buffer].last;
  }
  return ActivationSlots(std::move(activations));
}

ActivationSlots activation_slots(const Schedule& schedule, Rank rank, SlotGranularity granularity) {
  return activation_slots(schedule, rank, schedule.placement().stages(rank), granularity);
}

}  // namespace stagecraft
