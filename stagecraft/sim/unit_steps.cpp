#include "stagecraft/sim/unit_steps.h"

#include <algorithm>
#include <utility>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/needs.h"
#include "stagecraft/schedule/passes/pair_flags.h"
#include "stagecraft/schedule/verify.h"

namespace stagecraft {
namespace {

constexpr uint8_t bit(ActionType type) {
  return static_cast<uint8_t>(1U << static_cast<unsigned>(type));
}

class LockStep {
 public:
  LockStep(const Schedule& schedule, const StageGraph& graph)
      : graph_(graph),
        needs_(schedule, graph, false),
        present_(schedule, "simulate_unit_steps"),
        done_(schedule, "simulate_unit_steps"),
        queues_(schedule.lists().size()),
        heads_(schedule.lists().size(), 0),
        blockers_(schedule.lists().size()) {
    result_.slots.resize(queues_.size());
    for (std::size_t r = 0; r < queues_.size(); ++r) {
      for (const Slot& slot : SlotRange(schedule.lists()[r])) {
        bool takes_step = false;
        for (const Action part : slot.parts()) {
          if (!has_microbatch(part.type())) continue;
          takes_step = true;
          present_.at(part.stage(), part.microbatch()) |= bit(part.type());
        }
        if (takes_step) queues_[r].push_back(slot);
      }
      if (!queues_[r].empty()) unfinished_.push_back(r);
    }
  }

  UnitSteps run() {
    while (!unfinished_.empty()) {
      bool progress = false;
      for (const std::size_t r : unfinished_) {
        auto& row = result_.slots[r];
        row.emplace_back();
        if (try_head(r)) {
          row.back() = queues_[r][heads_[r] - 1].position();
          progress = true;
        }
      }
      drop_finished();
      for (const std::size_t r : unfinished_) {
        auto& row = result_.slots[r];
        if (!row.back() && try_head(r)) row.back() = queues_[r][heads_[r] - 1].position();
      }
      drop_finished();
      if (!progress) throw ScheduleError("the ranks wait for each other", stuck());
      ++result_.steps;
    }
    return std::move(result_);
  }

 private:
  // What a rank waited for when it last tried: most tries end there.
  struct Blocker {
    const uint8_t* done = nullptr;
    uint8_t wanted = 0;
  };

  bool try_head(std::size_t r) {
    Blocker& blocker = blockers_[r];
    if (blocker.done != nullptr && (*blocker.done & blocker.wanted) == 0) return false;
    blocker.done = nullptr;
    const Slot& slot = queues_[r][heads_[r]];
    for (const Action part : slot.parts()) {
      if (!is_ready(part, blocker)) return false;
    }
    for (const Action part : slot.parts()) {
      done_.at(part.stage(), part.microbatch()) |= bit(part.type());
    }
    ++heads_[r];
    return true;
  }

  bool is_ready(Action action, Blocker& blocker) {
    bool ready = true;
    const auto check = [&](ActionType type, StageId stage) {
      ready = is_done(type, stage, action.microbatch(), blocker);
      return ready;
    };
    // Here it is the receive that waits for the sends, not the compute behind it.
    if (action.type() == ActionType::kRecvForward) {
      check_sends(action, graph_.producers(action.stage()), ActionType::kSendForward, check);
    } else if (action.type() == ActionType::kRecvBackward) {
      check_sends(action, graph_.consumers(action.stage()), ActionType::kSendBackward, check);
    } else {
      needs_.visit(action, check);
    }
    return ready;
  }

  template <typename Check>
  void check_sends(Action action, std::span<const StageId> sources, ActionType send,
                   Check&& check) const {
    for (const StageId source : sources) {
      if (needs_.is_elsewhere(action.stage(), source) && !check(send, source)) return;
    }
  }

  bool is_done(ActionType type, StageId stage, MicrobatchId m, Blocker& blocker) {
    uint8_t wanted = bit(type);
    if (type == ActionType::kBackward) wanted |= bit(ActionType::kBackwardInput);
    const uint8_t& done = done_.at(stage, m);
    if ((done & wanted) != 0 || (present_.at(stage, m) & wanted) == 0) return true;
    blocker = {&done, wanted};
    return false;
  }

  void drop_finished() {
    std::erase_if(unfinished_, [&](std::size_t r) { return heads_[r] == queues_[r].size(); });
  }

  std::vector<std::string> stuck() const {
    std::vector<std::string> actions;
    for (const std::size_t r : unfinished_) actions.push_back(to_string(queues_[r][heads_[r]]));
    return actions;
  }

  const StageGraph& graph_;
  Needs needs_;
  PairFlags present_;
  PairFlags done_;
  std::vector<std::vector<Slot>> queues_;
  std::vector<std::size_t> heads_;
  std::vector<Blocker> blockers_;
  std::vector<std::size_t> unfinished_;
  UnitSteps result_;
};

}  // namespace

UnitSteps simulate_unit_steps(const Schedule& schedule, const StageGraph& graph) {
  verify_or_throw(schedule, graph, "simulate_unit_steps", {.mode = VerifyMode::kPartial});
  return LockStep(schedule, graph).run();
}

UnitSteps simulate_unit_steps(const Schedule& schedule) {
  return simulate_unit_steps(schedule, StageGraph::chain(std::max(schedule.num_stages(), 1)));
}

}  // namespace stagecraft
