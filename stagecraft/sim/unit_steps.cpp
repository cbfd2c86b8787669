#include "stagecraft/sim/unit_steps.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/needs.h"
#include "stagecraft/schedule/pair_flags.h"

namespace stagecraft {
namespace {

// A set of ranks that are removed in ascending order while others are inserted.
class RankSet {
 public:
  explicit RankSet(std::size_t ranks) : words_((ranks + 63) / 64, 0) {}

  void insert(std::size_t rank) { words_[rank / 64] |= uint64_t{1} << (rank % 64); }
  bool is_empty() const {
    return std::all_of(words_.begin(), words_.end(), [](uint64_t word) { return word == 0; });
  }
  // Removes the ranks in ascending order and calls `visit` for each. A rank that `visit` inserts
  // below the current one stays for the next pass.
  template <typename Visit>
  void take_all(Visit&& visit) {
    for (std::size_t w = 0; w < words_.size(); ++w) {
      uint64_t passed = 0;
      while (uint64_t left = words_[w] & ~passed) {
        const int bit = std::countr_zero(left);
        words_[w] &= ~(uint64_t{1} << bit);
        passed = (uint64_t{2} << bit) - 1;
        visit(w * 64 + static_cast<std::size_t>(bit));
      }
    }
  }

 private:
  std::vector<uint64_t> words_;
};

// A step has two passes over the ranks in ascending order: all that have slots left, then those
// that could not act in the first. It visits only ranks whose next slot may have become possible.
class LockStep {
 public:
  LockStep(const Schedule& schedule, const StageGraph& graph)
      : graph_(graph),
        rank_of_(schedule.placement().ranks()),
        needs_(schedule, graph, Needs::Blocks::kNothing),
        present_(schedule, "simulate_unit_steps"),
        done_(schedule, "simulate_unit_steps"),
        queues_(schedule.lists().size()),
        heads_(schedule.lists().size(), 0),
        last_step_(schedule.lists().size(), -1),
        waits_(schedule.lists().size()),
        sleepers_(schedule.lists().size()),
        first_pass_(schedule.lists().size()),
        second_pass_(schedule.lists().size()) {
    result_.ranks.resize(queues_.size());
    for (std::size_t r = 0; r < queues_.size(); ++r) {
      for (const Slot& slot : SlotRange(schedule.lists()[r])) {
        bool takes_step = false;
        for (const Action part : slot.parts()) {
          if (!has_microbatch(part.type())) continue;
          takes_step = true;
          present_.at(part.stage(), part.microbatch()) |= type_bit(part.type());
        }
        if (takes_step) queues_[r].push_back(slot);
      }
      if (queues_[r].empty()) continue;
      ++unfinished_;
      first_pass_.insert(r);
    }
  }

  UnitSteps run() {
    for (; unfinished_ > 0; ++step_) {
      if (first_pass_.is_empty()) throw_stuck();
      RankSet first = std::exchange(first_pass_, RankSet(queues_.size()));
      current_ = &first;
      first.take_all([&](std::size_t r) { visit(r); });
      // Ranks that were inserted after the pass had gone beyond them have waited in it.
      first.take_all([&](std::size_t r) { second_pass_.insert(r); });
      current_ = &second_pass_;
      second_pass_.take_all([&](std::size_t r) { visit(r); });
      second_pass_.take_all([&](std::size_t r) { first_pass_.insert(r); });
    }
    result_.steps = step_;
    return std::move(result_);
  }

 private:
  struct Wait {
    Action action;  // any of `wanted` of its stage and microbatch
    uint16_t wanted = 0;
  };

  void visit(std::size_t r) {
    // A rank executes one slot in each step.
    if (last_step_[r] == step_) {
      first_pass_.insert(r);
      return;
    }
    const Slot& slot = queues_[r][heads_[r]];
    for (const Action part : slot.parts()) {
      if (!is_ready(part, r)) return;
    }
    result_.ranks[r].push_back({slot.position(), step_});
    last_step_[r] = step_;
    for (const Action part : slot.parts()) {
      done_.at(part.stage(), part.microbatch()) |= type_bit(part.type());
    }
    ++heads_[r];
    if (heads_[r] < queues_[r].size()) {
      first_pass_.insert(r);
    } else {
      --unfinished_;
    }
    std::erase_if(sleepers_[r], [&](std::size_t sleeper) {
      const Wait& wait = waits_[sleeper];
      if ((done_.at(wait.action.stage(), wait.action.microbatch()) & wait.wanted) == 0)
        return false;
      current_->insert(sleeper);
      return true;
    });
  }

  bool is_ready(Action action, std::size_t r) {
    bool ready = true;
    const auto check = [&](ActionType type, StageId stage) {
      ready = is_done(type, stage, action.microbatch(), r);
      return ready;
    };
    // Here the receive waits for its send, not the compute after it.
    if (action.type() == ActionType::kRecvForward) {
      check_send(action, graph_.producers(action.stage()), ActionType::kSendForward, check);
    } else if (action.type() == ActionType::kRecvBackward) {
      check_send(action, graph_.consumers(action.stage()), ActionType::kSendBackward, check);
    } else {
      needs_.visit(action, check);
      // A send is complete when its receives are done.
      if (ready && is_send_wait(action.type())) {
        needs_.visit_receives(action.with_type(send_of(action.type())), check);
      }
    }
    return ready;
  }

  // A receive of several values comes where the first of them is sent. Waiting for the others there
  // could deadlock, so only the compute waits.
  template <typename Check>
  void check_send(Action action, std::span<const StageId> sources, ActionType send,
                  Check&& check) const {
    const auto is_elsewhere = [&](StageId source) {
      return needs_.is_elsewhere(action.stage(), source);
    };
    if (std::count_if(sources.begin(), sources.end(), is_elsewhere) != 1) return;
    check(send, *std::find_if(sources.begin(), sources.end(), is_elsewhere));
  }

  // Whether the action is done. If not, `r` waits until it is.
  bool is_done(ActionType type, StageId stage, MicrobatchId m, std::size_t r) {
    uint16_t wanted = type_bit(type);
    if (type == ActionType::kBackward) wanted |= type_bit(ActionType::kBackwardInput);
    if ((done_.at(stage, m) & wanted) != 0 || (present_.at(stage, m) & wanted) == 0) return true;
    waits_[r] = {Action(stage, type, m), wanted};
    sleepers_[rank_of_[stage].position()].push_back(r);
    return false;
  }

  [[noreturn]] void throw_stuck() const {
    std::string message = "the ranks wait for each other:";
    std::vector<std::string> actions;
    for (std::size_t r = 0; r < queues_.size(); ++r) {
      if (heads_[r] == queues_[r].size()) continue;
      const Slot& slot = queues_[r][heads_[r]];
      actions.push_back(to_string(slot));
      message += fmt::format("{} rank {} at slot {}, {}", actions.size() > 1 ? ";" : "", r,
                             slot.position(), actions.back());
    }
    throw ScheduleError(message, std::move(actions));
  }

  const StageGraph& graph_;
  const IndexedVector<StageId, Rank>& rank_of_;
  Needs needs_;
  PairFlags present_;
  PairFlags done_;
  std::vector<std::vector<Slot>> queues_;  // the slots that take a step
  std::vector<std::size_t> heads_;
  std::vector<int64_t> last_step_;  // in which the rank acted
  std::vector<Wait> waits_;
  std::vector<std::vector<std::size_t>> sleepers_;
  RankSet first_pass_;   // to be visited in the next step
  RankSet second_pass_;  // and at the end of this one
  RankSet* current_ = nullptr;
  std::size_t unfinished_ = 0;
  int64_t step_ = 0;
  UnitSteps result_;
};

}  // namespace

UnitSteps simulate_unit_steps(const Schedule& schedule, const StageGraph& graph,
                              Verified verified) {
  if (verified == Verified::kNo) {
    verify_or_throw(schedule, graph, "simulate_unit_steps", {.mode = VerifyMode::kPartial});
  }
  return LockStep(schedule, graph).run();
}

UnitSteps simulate_unit_steps(const Schedule& schedule) {
  return simulate_unit_steps(schedule, StageGraph::chain(std::max(schedule.num_stages(), 1)));
}

}  // namespace stagecraft
