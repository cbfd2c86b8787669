#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stagecraft/base/indexed_vector.h"
#include "stagecraft/schedule/action_index.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/sim/cost_model.h"
#include "stagecraft/sim/simulate.h"
#include "stagecraft/sim/transfers.h"

namespace stagecraft {

/// The costs of actions.
class CostTable {
 public:
  CostTable(const CostModel& costs, int32_t stages);

  const StageCost& get(Action action) const {
    if (!exceptions_.empty()) {
      const auto found = exceptions_.find(key(action.stage(), action.microbatch()));
      if (found != exceptions_.end()) return found->second;
    }
    return stages_[action.stage()];
  }
  double duration(Action action) const;

 private:
  static uint64_t key(StageId stage, MicrobatchId m) {
    return (static_cast<uint64_t>(stage.value()) << 32U) | static_cast<uint32_t>(m.value());
  }
  IndexedVector<StageId, StageCost> stages_;
  std::unordered_map<uint64_t, StageCost> exceptions_;
};

/// The state of a simulation while the lists run: everything an executed slot changes.
class Clock {
 public:
  /// The arguments must outlive the object.
  Clock(const Schedule& schedule, const StageGraph& graph, const CostModel& costs,
        const ActionIndex& index);

  /// REQUIRES that all actions that the slot needs were executed before.
  void execute(std::size_t rank, std::size_t offset, std::size_t length);
  /// The results, without the critical path (trace_critical_path). Called once.
  Simulation finish();

  const Transfers& transfers() const { return transfers_; }

 private:
  struct Readiness {
    double values = 0;  // when all values can be read
    double made = 0;    // when all were made: without the time of transfers
  };

  struct Change {
    double time = 0;
    double amount = 0;
    std::size_t offset = 0;
  };

  Readiness ready(Action action) const;
  void compute(std::size_t rank, std::size_t offset, std::size_t length);
  void send_results(std::size_t rank, std::size_t first, std::size_t end);
  void send(std::size_t rank, std::size_t offset);
  void wait_for_send(std::size_t rank, std::size_t offset);
  void unshard(std::size_t rank, std::size_t offset);
  // When all transfers of a SEND have left; nothing if it has no reader on a different rank.
  std::optional<double> time_left(Action send) const;
  // Counts the memory of a value that is sent, until the value has left or until the wait for its
  // send.
  void hold_sent(std::size_t rank, std::size_t offset, Action send, double now);
  void release_until(std::size_t rank, double time);
  void account_memory(std::size_t rank, std::size_t first, std::size_t end);
  void send_along(std::size_t rank, Transfers::Direction direction, const Transfers::End& end,
                  MicrobatchId m, double now);
  void change_memory(std::size_t rank, std::optional<std::size_t> offset, double time,
                     double amount);
  void add_sample(std::size_t rank, std::optional<std::size_t> offset, double time, double amount);
  double end_of(uint32_t place, StageId stage) const;

  const Schedule& schedule_;
  const CostModel& costs_;
  const ActionIndex& index_;
  bool is_lowered_;
  CostTable table_;
  Transfers transfers_;
  std::vector<double> now_;                    // by rank: when it is free
  std::vector<double> gathers_until_;          // by rank: when its gathers are done
  IndexedVector<StageId, double> weights_at_;  // when the stage's weights are there
  std::vector<Change> changes_;
  std::vector<bool> is_over_cap_;  // by rank
  // By rank: values that were sent and that no wait releases. The first one to leave is on top.
  std::vector<std::priority_queue<std::pair<double, double>, std::vector<std::pair<double, double>>,
                                  std::greater<>>>
      leaving_values_;
  std::vector<std::pair<double, std::size_t>> leaving_;
  Simulation result_;
};

}  // namespace stagecraft
