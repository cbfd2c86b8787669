#include "stagecraft/schedule/passes/limit_sends.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "stagecraft/base/assert.h"
#include "stagecraft/base/check.h"
#include "stagecraft/schedule/action_index.h"
#include "stagecraft/schedule/needs.h"
#include "stagecraft/schedule/passes/add_waits.h"
#include "stagecraft/schedule/passes/pass_input.h"
#include "stagecraft/schedule/verify.h"

namespace stagecraft {
namespace {

// A slot of a list that is not a wait for a send.
using Node = uint32_t;
constexpr Node kNoNode = UINT32_MAX;

// The order of nodes: for each node and each rank, the number of the rank's nodes that come before
// the node, or are the node itself. Edges can be added. Counts only grow.
class EventOrder {
 public:
  // `sizes`: the number of nodes of each rank. Nodes of a rank are in order.
  explicit EventOrder(std::span<const std::size_t> sizes) : ranks_(sizes.size()) {
    for (std::size_t r = 0; r < ranks_; ++r) {
      first_.push_back(static_cast<Node>(rank_of_.size()));
      rank_of_.insert(rank_of_.end(), sizes[r], static_cast<uint32_t>(r));
    }
    successors_.resize(rank_of_.size());
    before_.resize(rank_of_.size() * ranks_, 0);
    for (Node node = 0; node < rank_of_.size(); ++node) count(node, rank_of_[node]) = number(node);
  }

  // Called before `settle`.
  void connect(Node from, Node to) { successors_[from].push_back(to); }

  // Computes the counts for all edges so far. Returns false if the edges have a cycle.
  bool settle() {
    std::vector<uint32_t> incoming(rank_of_.size(), 0);
    for (Node node = 0; node < rank_of_.size(); ++node) {
      visit_successors(node, [&](Node to) { ++incoming[to]; });
    }
    std::vector<Node> ready;
    for (Node node = 0; node < rank_of_.size(); ++node) {
      if (incoming[node] == 0) ready.push_back(node);
    }
    std::size_t settled = 0;
    while (!ready.empty()) {
      const Node node = ready.back();
      ready.pop_back();
      ++settled;
      visit_successors(node, [&](Node to) {
        raise(to, node);
        if (--incoming[to] == 0) ready.push_back(to);
      });
    }
    return settled == rank_of_.size();
  }

  // Called after `settle`. REQUIRES that `to` does not reach `from`.
  void add(Node from, Node to) {
    SC_ASSERT(!reaches(to, from));
    successors_[from].push_back(to);
    if (!raise(to, from)) return;
    std::vector<Node> changed = {to};
    while (!changed.empty()) {
      const Node node = changed.back();
      changed.pop_back();
      visit_successors(node, [&](Node next) {
        if (raise(next, node)) changed.push_back(next);
      });
    }
  }

  bool reaches(Node from, Node to) const {
    return before_[to * ranks_ + rank_of_[from]] >= number(from);
  }

 private:
  uint32_t number(Node node) const { return node - first_[rank_of_[node]] + 1; }
  uint32_t& count(Node node, std::size_t rank) { return before_[node * ranks_ + rank]; }

  template <typename Visit>
  void visit_successors(Node node, Visit&& visit) const {
    if (node + 1 < rank_of_.size() && rank_of_[node + 1] == rank_of_[node]) visit(node + 1);
    for (const Node next : successors_[node]) visit(next);
  }

  // Everything that comes before `from` now comes before `node`. Returns whether a count has grown.
  bool raise(Node node, Node from) {
    uint32_t* const own = before_.data() + node * ranks_;
    const uint32_t* const other = before_.data() + from * ranks_;
    bool is_new = false;
    for (std::size_t r = 0; r < ranks_; ++r) {
      if (own[r] >= other[r]) continue;
      own[r] = other[r];
      is_new = true;
    }
    return is_new;
  }

  std::size_t ranks_;
  std::vector<uint32_t> rank_of_;              // by node
  std::vector<Node> first_;                    // by rank
  std::vector<std::vector<Node>> successors_;  // on other ranks, and after waits
  std::vector<uint32_t> before_;               // by node, then rank
};

// What a receive waits for in the model.
enum class ReceiveModel : uint8_t {
  kWaits,  // for its send, if it has one send only; torch's model
  kPosts,  // for nothing: only the compute that reads the value waits
};

class SendLimiter {
 public:
  SendLimiter(const Schedule& schedule, const StageGraph& graph, std::size_t limit)
      : schedule_(schedule),
        graph_(graph),
        limit_(limit),
        index_(schedule),
        needs_(schedule, graph, Needs::Blocks::kNothing) {
    index_.add_all(schedule);
    Node node = 0;
    for (const ActionList& list : schedule.lists()) {
      const Node first = node;
      for (const Slot& slot : SlotRange(list)) {
        node_at_.insert(node_at_.end(), slot.actions().size(), node);
        if (!is_wait(slot)) ++node;
      }
      sizes_.push_back(node - first);
    }
  }

  // Nothing if the model has a cycle, or if no send can be waited for at a place where a wait is
  // needed.
  std::optional<std::vector<ActionList>> run(ReceiveModel model) {
    EventOrder order(sizes_);
    connect(order, model);
    if (!order.settle()) return std::nullopt;
    std::vector<ActionList> lists;
    for (std::size_t r = 0; r < schedule_.lists().size(); ++r) {
      if (!limit_list(r, order, lists.emplace_back())) return std::nullopt;
    }
    return lists;
  }

 private:
  struct Pending {
    Action send;
    std::vector<Node> receives;
  };

  static bool is_wait(const Slot& slot) { return is_send_wait(slot.actions().front().type()); }

  Node find(ActionType type, StageId stage, MicrobatchId m) const {
    const uint32_t place = index_.find(type, stage, m);
    return place == ActionIndex::kNowhere ? kNoNode : node_at_[place];
  }

  std::vector<Node> receives_of(Action send) const {
    std::vector<Node> receives;
    needs_.visit_receives(send, [&](ActionType type, StageId reader) {
      const Node receive = find(type, reader, send.microbatch());
      if (receive != kNoNode) receives.push_back(receive);
      return true;
    });
    return receives;
  }

  bool has_one_source(ActionType receive, StageId stage) const {
    const auto sources =
        receive == ActionType::kRecvForward ? graph_.producers(stage) : graph_.consumers(stage);
    return std::count_if(sources.begin(), sources.end(),
                         [&](StageId source) { return needs_.is_elsewhere(stage, source); }) == 1;
  }

  void connect(EventOrder& order, ReceiveModel model) const {
    const auto link = [&](Node from, Node to) {
      if (from != kNoNode && to != kNoNode) order.connect(from, to);
    };
    std::size_t place = 0;
    Node end = 0;  // of the rank's nodes
    for (std::size_t r = 0; r < sizes_.size(); ++r) {
      end += static_cast<Node>(sizes_[r]);
      for (const Action action : schedule_.lists()[r]) {
        const Node node = node_at_[place++];
        if (is_send_wait(action.type())) {
          if (node == end) continue;  // at the end of the list
          const Action send = action.with_type(send_of(action.type()));
          for (const Node receive : receives_of(send)) link(receive, node);
          continue;
        }
        if (action.type() != ActionType::kSendForward &&
            action.type() != ActionType::kSendBackward) {
          continue;
        }
        needs_.visit_receives(action, [&](ActionType type, StageId reader) {
          const MicrobatchId m = action.microbatch();
          if (model == ReceiveModel::kWaits && has_one_source(type, reader)) {
            link(node, find(type, reader, m));
            return true;
          }
          if (type == ActionType::kRecvForward) {
            link(node, find(ActionType::kForward, reader, m));
          } else {
            const uint32_t maker = index_.find_gradient_maker(reader, m);
            if (maker != ActionIndex::kNowhere) link(node, node_at_[maker]);
          }
          return true;
        });
      }
    }
  }

  bool limit_list(std::size_t rank, EventOrder& order, ActionList& out) {
    const ActionList& list = schedule_.lists()[rank];
    out.reserve(list.size());
    std::vector<Pending> pending;  // the oldest first
    for (const Slot& slot : SlotRange(list)) {
      const Action action = slot.actions().front();
      if (is_send_wait(action.type())) {
        const Action send = action.with_type(send_of(action.type()));
        const auto found = std::find_if(pending.begin(), pending.end(),
                                        [&](const Pending& each) { return each.send == send; });
        const bool is_sent = find(send.type(), send.stage(), send.microbatch()) != kNoNode;
        if (found == pending.end() && is_sent) continue;  // moved to an earlier place
        out.push_back(action);
        if (found != pending.end()) pending.erase(found);
        continue;
      }
      const ActionType type = action.type();
      if ((type == ActionType::kSendForward || type == ActionType::kSendBackward) &&
          find(wait_of(type), action.stage(), action.microbatch()) != kNoNode) {
        const Node node = find(type, action.stage(), action.microbatch());
        while (pending.size() >= limit_) {
          const auto chosen = choose(pending, node, order);
          if (chosen == pending.end()) return false;
          for (const Node receive : chosen->receives) order.add(receive, node);
          out.push_back(chosen->send.with_type(wait_of(chosen->send.type())));
          pending.erase(chosen);
        }
        pending.push_back({action, receives_of(action)});
      }
      out.insert(out.end(), slot.actions().begin(), slot.actions().end());
    }
    return true;
  }

  // The first send whose receives all come before `node` already; otherwise the first send with no
  // receive after `node`.
  static std::vector<Pending>::iterator choose(std::vector<Pending>& pending, Node node,
                                               const EventOrder& order) {
    const auto free = std::find_if(pending.begin(), pending.end(), [&](const Pending& each) {
      return std::all_of(each.receives.begin(), each.receives.end(),
                         [&](Node receive) { return order.reaches(receive, node); });
    });
    if (free != pending.end()) return free;
    return std::find_if(pending.begin(), pending.end(), [&](const Pending& each) {
      return std::none_of(each.receives.begin(), each.receives.end(),
                          [&](Node receive) { return order.reaches(node, receive); });
    });
  }

  const Schedule& schedule_;
  const StageGraph& graph_;
  std::size_t limit_;
  ActionIndex index_;
  Needs needs_;
  std::vector<Node> node_at_;       // by place; of a wait, the node after it
  std::vector<std::size_t> sizes_;  // by rank: its nodes
};

}  // namespace

Schedule limit_sends(const Schedule& schedule, int32_t limit, const StageGraph& graph) {
  require_level(schedule, Level::kLowered, "limit_sends");
  require<ArgumentError>(limit >= 1, "limit_sends: at least 1 send, got {}", limit);
  if (!has_any(schedule, {ActionType::kWaitSendForward, ActionType::kWaitSendBackward}) &&
      has_any(schedule, {ActionType::kSendForward, ActionType::kSendBackward})) {
    return limit_sends(add_send_waits(schedule), limit, graph);
  }
  verify_or_throw(schedule, graph, "limit_sends", {.mode = VerifyMode::kPartial});
  SendLimiter limiter(schedule, graph, static_cast<std::size_t>(limit));
  // torch's model comes first, to make the choices of torch. It has cycles if receives are posted
  // early. The other model has none: a schedule that is good can be executed with every receive
  // before its send, and all edges, also those of waits that were moved, follow that order.
  std::optional<std::vector<ActionList>> lists = limiter.run(ReceiveModel::kWaits);
  if (!lists) lists = limiter.run(ReceiveModel::kPosts);
  if (!lists) throw ScheduleError("limit_sends: the ranks wait for each other", {});
  return {Level::kLowered, schedule.placement(), std::move(*lists)};
}

Schedule limit_sends(const Schedule& schedule, int32_t limit) {
  return limit_sends(schedule, limit, StageGraph::chain(std::max(schedule.num_stages(), 1)));
}

}  // namespace stagecraft
