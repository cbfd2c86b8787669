#include "stagecraft/schedule/passes/limit_sends.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/passes/add_waits.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/verify.h"
#include "tests/schedule/random.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

bool is_a_send(Action action) {
  return action.type() == ActionType::kSendForward || action.type() == ActionType::kSendBackward;
}

// By rank.
std::vector<int> most_outstanding(const Schedule& schedule) {
  std::vector<int> most;
  for (const ActionList& list : schedule.lists()) {
    int now = 0;
    int& rank = most.emplace_back(0);
    for (const Action action : list) {
      now += is_a_send(action) ? 1 : is_send_wait(action.type()) ? -1 : 0;
      rank = std::max(rank, now);
    }
  }
  return most;
}

std::string without_waits(const Schedule& schedule) {
  std::vector<ActionList> lists = schedule.lists();
  for (ActionList& list : lists) {
    std::erase_if(list, [](Action action) { return is_send_wait(action.type()); });
  }
  return to_csv(Schedule(Level::kLowered, schedule.placement(), std::move(lists)));
}

enum class Sends : uint8_t { kBuffered, kBlocking };

// Runs the lists for real: a wait for a send waits until its receives are posted. A buffered send
// does not; a blocking one does.
bool runs_with_waits(const Schedule& schedule, const StageGraph& graph,
                     Sends sends = Sends::kBuffered) {
  const auto& rank_of = schedule.placement().ranks();
  std::set<Action> done;
  std::vector<std::size_t> next(schedule.lists().size(), 0);
  const auto is_ready = [&](Action action) {
    const auto has = [&](StageId stage, ActionType type) {
      return done.contains(Action(stage, type, action.microbatch()));
    };
    if (!has_microbatch(action.type())) return true;
    if (is_send_wait(action.type()) && !has(action.stage(), send_of(action.type()))) return false;
    const bool is_wait =
        is_send_wait(action.type()) || (sends == Sends::kBlocking && is_a_send(action));
    const bool is_forward = action.type() == ActionType::kForward ||
                            (is_wait && (action.type() == ActionType::kWaitSendForward ||
                                         action.type() == ActionType::kSendForward));
    if (!is_wait && !is_forward && !makes_input_gradients(action.type())) return true;
    const auto others =
        is_forward == is_wait ? graph.consumers(action.stage()) : graph.producers(action.stage());
    return std::all_of(others.begin(), others.end(), [&](StageId other) {
      if (rank_of[other] == rank_of[action.stage()]) return true;
      if (is_wait)
        return has(other, is_forward ? ActionType::kRecvForward : ActionType::kRecvBackward);
      return has(other, is_forward ? ActionType::kSendForward : ActionType::kSendBackward);
    });
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < next.size(); ++r) {
      const ActionList& list = schedule.lists()[r];
      while (next[r] < list.size()) {
        const std::size_t end = next[r] + 1 + static_cast<std::size_t>(list[next[r]].num_parts());
        bool all = true;
        for (std::size_t i = next[r]; i < end; ++i) all = all && is_ready(list[i]);
        if (!all) break;
        for (std::size_t i = next[r]; i < end; ++i) done.insert(list[i]);
        next[r] = end;
        moved = true;
      }
    }
  }
  for (std::size_t r = 0; r < next.size(); ++r) {
    if (next[r] < schedule.lists()[r].size()) return false;
  }
  return true;
}

// What torch 2.15 does, by searches: a graph of all slots but the waits, with edges along each
// list, from a send to its receive, and from the receive to the slot after the wait for the send.
class TorchLimiter {
 public:
  explicit TorchLimiter(const Schedule& schedule) : schedule_(schedule) {
    for (std::size_t r = 0; r < schedule.lists().size(); ++r) {
      std::vector<Action> waits;
      std::optional<Action> previous;
      for (const Slot& slot : SlotRange(schedule.lists()[r])) {
        const Action action = slot.actions().front();
        if (is_send_wait(action.type())) {
          waits.push_back(action.with_type(send_of(action.type())));
          continue;
        }
        const Action key = key_of(slot);
        if (previous) edges_[*previous].insert(key);
        for (const Action send : waits) edges_[receive_of(send)].insert(key);
        waits.clear();
        if (is_a_send(action)) edges_[action].insert(receive_of(action));
        previous = key;
      }
    }
  }

  std::optional<std::vector<ActionList>> limit(std::size_t most) {
    std::vector<ActionList> lists;
    for (const ActionList& list : schedule_.lists()) {
      ActionList& out = lists.emplace_back();
      ActionList pending;
      for (const Slot& slot : SlotRange(list)) {
        const Action action = slot.actions().front();
        if (is_send_wait(action.type())) {
          const auto found = std::ranges::find(pending, action.with_type(send_of(action.type())));
          if (found == pending.end()) continue;
          pending.erase(found);
          out.push_back(action);
          continue;
        }
        if (is_a_send(action)) {
          if (pending.size() >= most) {
            auto chosen = std::ranges::find_if(
                pending, [&](Action send) { return reaches(receive_of(send), action); });
            if (chosen == pending.end()) {
              chosen = std::ranges::find_if(
                  pending, [&](Action send) { return !reaches(action, receive_of(send)); });
            }
            if (chosen == pending.end()) return std::nullopt;
            edges_[receive_of(*chosen)].insert(action);
            out.push_back(chosen->with_type(wait_of(chosen->type())));
            pending.erase(chosen);
          }
          pending.push_back(action);
        }
        out.insert(out.end(), slot.actions().begin(), slot.actions().end());
      }
    }
    return lists;
  }

 private:
  static Action key_of(const Slot& slot) { return slot.parts().front(); }
  static Action receive_of(Action send) {
    const int32_t stage = send.stage().value();
    return send.type() == ActionType::kSendForward
               ? Action(StageId(stage + 1), ActionType::kRecvForward, send.microbatch())
               : Action(StageId(stage - 1), ActionType::kRecvBackward, send.microbatch());
  }
  bool reaches(Action from, Action to) const {
    std::set<Action> seen = {from};
    std::vector<Action> open = {from};
    while (!open.empty()) {
      const Action at = open.back();
      open.pop_back();
      if (at == to) return true;
      const auto found = edges_.find(at);
      if (found == edges_.end()) continue;
      for (const Action next : found->second) {
        if (seen.insert(next).second) open.push_back(next);
      }
    }
    return false;
  }

  const Schedule& schedule_;
  std::map<Action, std::set<Action>> edges_;
};

// With waits, and without UNSHARD and RESHARD, which come more than once.
Schedule lowered_with_waits(const Schedule& schedule) {
  return lower(schedule, {.target = LowerTarget::kTorch215, .shard = false});
}

TEST(LimitSends, UnboundedSchedulesHaveAsManyAsInTorch) {
  const auto most = [](std::string_view name) {
    const Schedule schedule =
        build_schedule(name, {.ranks = 4, .microbatches = 8, .stages_per_rank = 2});
    return most_outstanding(lower(schedule, {.target = LowerTarget::kTorch215}));
  };
  using testing::ElementsAre;
  EXPECT_THAT(most("LoopedBFS"), ElementsAre(16, 16, 16, 16));
  EXPECT_THAT(most("Interleaved1F1B"), ElementsAre(15, 16, 16, 16));
  EXPECT_THAT(most("InterleavedZeroBubble"), ElementsAre(12, 16, 16, 16));
  EXPECT_THAT(most("ZBVZeroBubble"), ElementsAre(12, 16, 16, 8));
  EXPECT_THAT(most("DualPipeV"), ElementsAre(12, 16, 16, 8));
}

TEST(LimitSends, ChoosesAsTorchDoes) {
  int compared = 0;
  for (const ScheduleKind& kind : schedule_kinds()) {
    for (int32_t p = 2; p <= 4; ++p) {
      for (const int32_t m : {2, 5, 8}) {
        if (m < kind.min_microbatches(p, kind.default_stages_per_rank)) continue;
        const Schedule schedule =
            lowered_with_waits(build_schedule(kind.name, {.ranks = p, .microbatches = m}));
        for (const int32_t most : {1, 2, 3, 7}) {
          const auto expected = TorchLimiter(schedule).limit(static_cast<std::size_t>(most));
          ASSERT_TRUE(expected.has_value()) << kind.name;
          EXPECT_EQ(to_csv(limit_sends(schedule, most)),
                    to_csv(Schedule(Level::kLowered, schedule.placement(), *expected)))
              << kind.name << ", " << p << " ranks, " << m << " microbatches, limit " << most;
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 200);
}

// In torch one outstanding send is enough for each of 202 shapes.
TEST(LimitSends, OneOutstandingSendIsEnough) {
  int limited = 0;
  for (const ScheduleKind& kind : schedule_kinds()) {
    for (int32_t p = 2; p <= 5; ++p) {
      for (int32_t m = 1; m <= 10; ++m) {
        if (m < kind.min_microbatches(p, kind.default_stages_per_rank)) continue;
        const Schedule schedule = build_schedule(kind.name, {.ranks = p, .microbatches = m});
        const Schedule one = lower(schedule, {.max_sends = 1});
        for (const int most : most_outstanding(one)) EXPECT_LE(most, 1) << kind.name;
        ++limited;
      }
    }
  }
  EXPECT_GT(limited, 200);
}

// Skip connections, receives that are posted late or early, every limit.
TEST(LimitSends, KeepsTheLimitAndTheOrder) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Random random(seed);
    const ScheduleKind& kind = schedule_kinds()[random.below(schedule_kinds().size())];
    const int32_t ranks = random.between(2, 4);
    const int32_t least = kind.min_microbatches(ranks, kind.default_stages_per_rank);
    const Schedule schedule =
        build_schedule(kind.name, {.ranks = ranks, .microbatches = least + random.between(0, 5)});
    StageGraph graph = StageGraph::chain(schedule.num_stages());
    for (int32_t i = random.between(0, 3); i > 0 && schedule.num_stages() > 2; --i) {
      const int32_t from = random.between(0, schedule.num_stages() - 2);
      const std::vector<StageEdge> edge = {
          {StageId(from), StageId(random.between(from + 1, schedule.num_stages() - 1))}};
      graph = graph.with_edges(edge);
    }
    LowerOptions options;
    if (random.one_in(2)) options.prefetch = random.between(0, 4);
    const Schedule lowered = lower(schedule, graph, options);
    const int32_t limit = random.between(1, 6);
    const std::string what = std::string(kind.name) + ", seed " + std::to_string(seed);
    const Schedule bounded = limit_sends(lowered, limit, graph);
    for (const int most : most_outstanding(bounded)) EXPECT_LE(most, limit) << what;
    EXPECT_EQ(without_waits(bounded), to_csv(lowered)) << what;
    EXPECT_TRUE(verify(bounded, graph, {.mode = infer_mode(bounded)}).ok()) << what;
    EXPECT_TRUE(runs_with_waits(bounded, graph)) << what;
    EXPECT_TRUE(runs_with_waits(bounded, graph, Sends::kBlocking)) << what;
  }
}

// A wait that is moved to any place of its list: the verifier, for which sends block, accepts what
// runs, and nothing else.
TEST(LimitSends, TheVerifierKnowsWhichPlacesOfAWaitRun) {
  int good = 0;
  int bad = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    Random random(seed);
    const ScheduleKind& kind = schedule_kinds()[random.below(schedule_kinds().size())];
    const int32_t ranks = random.between(2, 4);
    const int32_t least = kind.min_microbatches(ranks, kind.default_stages_per_rank);
    const Schedule schedule =
        build_schedule(kind.name, {.ranks = ranks, .microbatches = least + random.between(0, 3)});
    StageGraph graph = StageGraph::chain(schedule.num_stages());
    if (schedule.num_stages() > 2 && random.one_in(2)) {
      const std::vector<StageEdge> edge = {
          {StageId(0), StageId(random.between(2, schedule.num_stages() - 1))}};
      graph = graph.with_edges(edge);
    }
    const Schedule bounded =
        lower(schedule, graph, {.shard = false, .max_sends = random.between(1, 3)});
    std::vector<ActionList> lists = bounded.lists();
    ActionList& list = lists[random.below(lists.size())];
    std::vector<std::size_t> waits;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (is_send_wait(list[i].type())) waits.push_back(i);
    }
    if (waits.empty()) continue;
    const std::size_t from = waits[random.below(waits.size())];
    const Action wait = list[from];
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(from));
    std::vector<std::size_t> places;  // not inside an overlap
    for (const Slot& slot : SlotRange(list)) places.push_back(slot.offset());
    const std::size_t to = places[random.below(places.size())];
    list.insert(list.begin() + static_cast<std::ptrdiff_t>(to), wait);
    const Schedule moved(Level::kLowered, bounded.placement(), lists);
    const bool runs = runs_with_waits(moved, graph, Sends::kBlocking);
    EXPECT_EQ(verify(moved, graph, {.mode = infer_mode(bounded)}).ok(), runs)
        << kind.name << ", seed " << seed << "\n"
        << to_csv(moved);
    EXPECT_TRUE(!runs || runs_with_waits(moved, graph)) << kind.name << ", seed " << seed;
    ++(runs ? good : bad);
  }
  EXPECT_GT(good, 100);
  EXPECT_GT(bad, 100);
}

TEST(LimitSends, RefusesWhatItIsNotFor) {
  const Schedule compute = build_schedule("1F1B", {.ranks = 2, .microbatches = 2});
  EXPECT_ERROR(limit_sends(compute, 1), ArgumentError, "limit_sends: expected a lowered");
  EXPECT_ERROR(limit_sends(lower(compute), 0), ArgumentError,
               "limit_sends: at least 1 send, got 0");
  EXPECT_ERROR(lower(compute, {.target = LowerTarget::kTorch213, .max_sends = 1}), ArgumentError,
               "lower: torch-2.13 has no waits");
  const Schedule crossed = parse_csv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0SEND_F2,0RECV_B0,0B0,0RECV_B1,0B1,0RECV_B2,0B2\n"
      "1RECV_F0,1F0,1RECV_F1,1RECV_F2,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1F2,1B2,1SEND_B2\n");
  EXPECT_TRUE(verify(crossed).ok());
  EXPECT_THAT(most_outstanding(limit_sends(crossed, 1)), testing::ElementsAre(1, 1));
}

}  // namespace
}  // namespace stagecraft
