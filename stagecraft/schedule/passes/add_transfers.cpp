#include "stagecraft/schedule/passes/add_transfers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/pair_flags.h"
#include "stagecraft/schedule/passes/pass_input.h"

namespace stagecraft {
namespace {

constexpr uint16_t kForwardDue = 1;     // there is an F that was not done yet
constexpr uint16_t kGradientDue = 2;    // there is a B or I that was not done yet
constexpr uint16_t kForwardPosted = 4;  // the RECV_F is placed
constexpr uint16_t kGradientPosted = 8;

class TransferWriter {
 public:
  TransferWriter(const Schedule& schedule, const StageGraph& graph)
      : schedule_(schedule),
        graph_(graph),
        rank_of_(schedule.placement().ranks()),
        flags_(schedule, "add_transfers"),
        out_(schedule.lists().size()),
        heads_(schedule.lists().size(), 0) {
    for (std::size_t r = 0; r < out_.size(); ++r) {
      out_[r].reserve(3 * schedule.lists()[r].size());
      for (const Action action : schedule.lists()[r]) {
        if (action.type() == ActionType::kForward) flags(action) |= kForwardDue;
        if (makes_input_gradients(action.type())) flags(action) |= kGradientDue;
      }
    }
  }

  // Ranks take turns, one slot each, as long as one of them can go on.
  Schedule write() {
    std::vector<std::size_t> unfinished;
    for (std::size_t r = 0; r < out_.size(); ++r) {
      if (!schedule_.lists()[r].empty()) unfinished.push_back(r);
    }
    while (!unfinished.empty()) {
      bool progress = false;
      for (const std::size_t r : unfinished) progress = step(r) || progress;
      if (!progress) throw ScheduleError("add_transfers: the ranks wait for each other", {});
      std::erase_if(unfinished,
                    [&](std::size_t r) { return heads_[r] == schedule_.lists()[r].size(); });
    }
    for (ActionList& list : out_) list.shrink_to_fit();
    return {Level::kLowered, schedule_.placement(), std::move(out_)};
  }

 private:
  uint16_t& flags(Action action) { return flags_.at(action.stage(), action.microbatch()); }

  bool step(std::size_t r) {
    const ActionList& list = schedule_.lists()[r];
    const std::size_t first = heads_[r];
    const std::size_t end = first + 1 + static_cast<std::size_t>(list[first].num_parts());
    if (!list[first].is_idle()) {
      for (std::size_t i = first; i < end; ++i) {
        if (is_compute(list[i].type()) && !is_ready(list[i])) return false;
      }
      out_[r].insert(out_[r].end(), list.begin() + static_cast<std::ptrdiff_t>(first),
                     list.begin() + static_cast<std::ptrdiff_t>(end));
      for (std::size_t i = first; i < end; ++i) finish(list[i]);
    }
    heads_[r] = end;
    return true;
  }

  bool is_ready(Action action) {
    const MicrobatchId m = action.microbatch();
    const bool is_forward = action.type() == ActionType::kForward;
    if (!is_forward && !makes_input_gradients(action.type())) return true;
    const auto sources =
        is_forward ? graph_.producers(action.stage()) : graph_.consumers(action.stage());
    const uint16_t due = is_forward ? kForwardDue : kGradientDue;
    return std::none_of(sources.begin(), sources.end(),
                        [&](StageId source) { return (flags_.at(source, m) & due) != 0; });
  }

  void finish(Action action) {
    if (action.type() == ActionType::kForward) {
      flags(action) &= static_cast<uint16_t>(~kForwardDue);
      send(action, ActionType::kSendForward, graph_.consumers(action.stage()),
           ActionType::kRecvForward, kForwardPosted);
    } else if (makes_input_gradients(action.type())) {
      flags(action) &= static_cast<uint16_t>(~kGradientDue);
      send(action, ActionType::kSendBackward, graph_.producers(action.stage()),
           ActionType::kRecvBackward, kGradientPosted);
    }
  }

  void send(Action action, ActionType send_type, std::span<const StageId> readers,
            ActionType receive_type, uint16_t posted) {
    const Rank rank = rank_of_[action.stage()];
    bool is_sent = false;
    for (const StageId reader : readers) {
      const Rank other = rank_of_[reader];
      if (other == rank || other == Placement::kNowhere) continue;
      if (!is_sent) out_[rank.position()].push_back(action.with_type(send_type));
      is_sent = true;
      uint16_t& reader_flags = flags_.at(reader, action.microbatch());
      if ((reader_flags & posted) != 0) continue;
      reader_flags |= posted;
      out_[other.position()].emplace_back(reader, receive_type, action.microbatch());
    }
  }

  const Schedule& schedule_;
  const StageGraph& graph_;
  const IndexedVector<StageId, Rank>& rank_of_;
  PairFlags flags_;
  std::vector<ActionList> out_;
  std::vector<std::size_t> heads_;
};

}  // namespace

Schedule add_transfers(const Schedule& schedule, const StageGraph& graph, Verified verified) {
  require_level(schedule, Level::kCompute, "add_transfers");
  if (verified == Verified::kNo) {
    verify_or_throw(schedule, graph, "add_transfers", {.mode = VerifyMode::kPartial});
  }
  return TransferWriter(schedule, graph).write();
}

Schedule add_transfers(const Schedule& schedule) {
  return add_transfers(schedule, StageGraph::chain(std::max(schedule.num_stages(), 1)));
}

}  // namespace stagecraft
