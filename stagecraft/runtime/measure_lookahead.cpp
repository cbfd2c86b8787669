#include "stagecraft/runtime/measure_lookahead.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "stagecraft/schedule/passes/shard_stages.h"
#include "stagecraft/sim/simulate.h"
#include "stagecraft/sim/unshard_lookahead.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {
namespace {

/// The number of gathers of each stage. The slowest one counts: a lookahead that is too large costs
/// memory, but one that is too small costs time in every step.
constexpr int kGathers = 3;

// The device may still be copying when a gather returns.
void wait_for_device(std::span<ShardUnit* const> units) {
  for (const ShardUnit* const unit : units) {
    const c10::Device device = unit->flat().device();
    if (device.is_cpu()) continue;
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.synchronizeStream(guard.getStream(device));
  }
}

double time_gather(const ShardedRank& rank, StageId stage) {
  const auto begin = Deadline::Clock::now();
  rank.shards.gather_stage(stage, rank.transport, Deadline::after(rank.timeout));
  wait_for_device(rank.shards.units_of(stage));
  const auto end = Deadline::Clock::now();
  rank.shards.release();
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

// The times of gathers by stage, in microseconds, the slowest of all replicas. All replicas begin
// together, so no time includes a wait for a replica that computes. All ranks of a replica gather
// at the same time, as in a step.
std::vector<double> gather_times(const ShardedRank& rank, const Placement& placement) {
  const auto own = placement.stages(rank.place.own());
  std::size_t rounds = 0;
  for (Rank r(0); r.value() < placement.num_ranks(); ++r) {
    rounds = std::max(rounds, placement.stages(r).size());
  }
  std::vector<double> times(static_cast<std::size_t>(placement.num_stages()), 0);
  for (std::size_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < kGathers; ++i) {
      rank.transport.barrier(Deadline::after(rank.timeout));
      if (round >= own.size()) continue;
      double& slowest = times[own[round].position()];
      slowest = std::max(slowest, time_gather(rank, own[round]));
    }
  }
  for (const c10::IValue& other : rank.transport.all_gather(times, Deadline::after(rank.timeout))) {
    const std::vector<double> theirs = other.toDoubleVector();
    for (std::size_t s = 0; s < times.size(); ++s) times[s] = std::max(times[s], theirs[s]);
  }
  return times;
}

// F, I, W and B of each stage; a negative number for a B that did not run.
std::vector<double> numbers_of(const CostModel& costs) {
  std::vector<double> numbers;
  for (const StageCost& stage : costs.stages) {
    numbers.insert(numbers.end(), {stage.forward, stage.backward_input, stage.backward_weight,
                                   stage.backward.value_or(-1)});
  }
  return numbers;
}

void set_numbers(CostModel& costs, const std::vector<double>& numbers) {
  auto number = numbers.begin();
  for (StageCost& stage : costs.stages) {
    stage.forward = *number++;
    stage.backward_input = *number++;
    stage.backward_weight = *number++;
    const double backward = *number++;
    stage.backward = backward < 0 ? std::nullopt : std::optional(backward);
  }
}

}  // namespace

MeasuredLookahead measure_lookahead(const ShardedRank& rank, const Recording& recording,
                                    const Schedule& computations, int32_t max_active_stages) {
  rank.shards.release();
  MeasuredLookahead found{.max_active_stages = max_active_stages};
  found.costs = lookahead_costs(recording, gather_times(rank, computations.placement()));
  // Times of replicas differ, but their schedules must not, so rank 0 decides.
  c10::IValue told;
  if (rank.transport.rank() == Rank(0)) {
    const std::vector<int32_t> lookahead =
        find_unshard_lookahead(computations, found.costs, recording.graph, max_active_stages);
    told = tree::tuple(
        {std::vector<int64_t>(lookahead.begin(), lookahead.end()), numbers_of(found.costs)});
  }
  told = rank.transport.broadcast(std::move(told), Rank(0), Deadline::after(rank.timeout));
  const auto& parts = told.toTupleRef().elements();
  for (const int64_t number : parts[0].toIntVector()) {
    found.lookahead.push_back(static_cast<int32_t>(number));
  }
  set_numbers(found.costs, parts[1].toDoubleVector());
  // No rank uses the result before all ranks have received it.
  rank.transport.barrier(Deadline::after(rank.timeout));
  found.makespan = simulate(shard_stages(computations, max_active_stages, found.lookahead),
                            found.costs, recording.graph)
                       .makespan;
  return found;
}

}  // namespace stagecraft
