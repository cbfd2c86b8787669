#include "stagecraft/runtime/step_driver.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include "stagecraft/base/check.h"
#include "stagecraft/partition/pipe.h"

namespace stagecraft {

namespace {

// In the order of the placement. ArgumentError unless they are exactly those of the rank.
std::vector<Stage> sort_stages(std::vector<Stage> stages, const Placement& placement, Rank rank) {
  std::sort(stages.begin(), stages.end(),
            [](const Stage& a, const Stage& b) { return a.index() < b.index(); });
  std::vector<int32_t> expected;
  std::vector<int32_t> got;
  for (const StageId stage : placement.stages(rank)) expected.push_back(stage.value());
  for (const Stage& stage : stages) got.push_back(stage.index().value());
  require<ArgumentError>(got == expected, "rank {}: the schedule places stages {} here, got {}",
                         rank.value(), expected, got);
  for (const Stage& stage : stages) {
    require<ArgumentError>(stage.num_stages() == placement.num_stages(),
                           "stage {} is one of {}, but the schedule has {} stages",
                           stage.index().value(), stage.num_stages(), placement.num_stages());
  }
  return stages;
}

ReplicaPlace place_of_rank(const Transport& transport, const Placement& placement,
                           int32_t replicas) {
  const int32_t ranks = placement.num_ranks();
  require<ArgumentError>(transport.num_ranks() == ranks * replicas,
                         "the schedule is for {} ranks{}, but the world has {}", ranks,
                         replicas > 1 ? fmt::format(" in each of {} replicas", replicas) : "",
                         transport.num_ranks());
  return {.self = transport.rank(), .ranks = ranks, .replicas = replicas};
}

std::shared_ptr<ParameterShards> shards_of(const PipelineOptions& options,
                                           const ReplicaPlace& place,
                                           std::span<const Stage> stages) {
  if (options.shard == ShardKind::kNone || place.replicas == 1) return nullptr;
  if (options.shards) {
    require<ArgumentError>(options.shards->kind() == options.shard,
                           "PipelineOptions::shards is for sharded {}, but PipelineOptions::shard "
                           "is {}",
                           to_string(options.shards->kind()), to_string(options.shard));
    return options.shards;
  }
  ShardGroup group{.own = place.replica()};
  for (int32_t r = 0; r < place.replicas; ++r) group.members.push_back(place.in_replica(r));
  const auto is_tied = [&](StageId stage, const std::string& name) {
    return std::ranges::any_of(options.ties, [&](const TiedWeight& tie) {
      return std::ranges::any_of(
          tie, [&](const ParameterRef& ref) { return ref.stage == stage && ref.name == name; });
    });
  };
  return std::make_shared<ParameterShards>(options.shard, std::move(group), stages, is_tied,
                                           options.shard_units);
}

// A rank of a Runner may be given the inputs of its own stages only. Conditions on several inputs
// can then not be checked; conditions on one input are also checked by the stage that takes it.
bool has_all_inputs(const Arguments& given, const Ports& ports) {
  return std::ranges::all_of(ports.feeds(), [&](const Ports::Feed& feed) {
    const c10::IValue* value = nullptr;
    if (!feed.argument) {
      value = given.kwargs.find(feed.name);
    } else if (static_cast<std::size_t>(*feed.argument) < given.args.size()) {
      value = &given.args[static_cast<std::size_t>(*feed.argument)];
    }
    return value != nullptr && !value->isNone();
  });
}

int64_t to_nanoseconds(Recorder::Time time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

PipelineOptions options_for(const Pipe& pipe, PipelineOptions options) {
  if (!options.ports) options.ports = pipe.ports();
  if (options.ties.empty()) options.ties = pipe.ties();
  // A stage checks the guards on its own inputs. Guards on inputs of several stages are checked
  // here.
  if (!options.check_arguments && pipe.has_guards()) {
    options.check_arguments = [pipe](const Arguments& each) {
      pipe.check_arguments(each.args, each.kwargs);
    };
  }
  return options;
}

Stage build_stage(const Pipe& pipe, StageId stage, const PipelineOptions& options) {
  return options.stage_options ? pipe.build_stage(stage, options.stage_options(stage))
                               : pipe.build_stage(stage);
}

void require_no_stage_options(const PipelineOptions& options) {
  require<ArgumentError>(!options.stage_options,
                         "PipelineOptions::stage_options is for the stages of a Pipe; stages that "
                         "are passed have their own options");
}

void set_operator_threads(int32_t threads) {
  // A thread takes over the process's number at its first query, so query before setting it.
  at::get_num_threads();
  at::set_num_threads(threads);
}

PipelineCore::PipelineCore(PipelineOptions given, ScheduleSource schedules)
    : options(std::move(given)),
      source(std::move(schedules)),
      ports(ports_or_chain(options.ports, source.placement().num_stages())),
      graph(stage_graph_of(ports)),
      seed(options.seed.value_or(at::detail::getDefaultCPUGenerator().current_seed())) {
  require<ArgumentError>(options.timeout.count() > 0, "expected a timeout above 0, got {} ns",
                         options.timeout.count());
  require<ArgumentError>(options.replicas >= 1, "expected at least one replica, got {}",
                         options.replicas);
  require<ArgumentError>(options.max_graphs >= 1,
                         "expected at least one graph, got max_graphs = {}", options.max_graphs);
  require<ArgumentError>(options.threads_per_rank.value_or(1) >= 1,
                         "expected at least one thread for each rank, got {}",
                         options.threads_per_rank.value_or(1));
}

void PipelineCore::check_inputs(const Microbatches& batch) const {
  if (!options.check_arguments) return;
  for (const Arguments& each : batch.inputs) {
    if (has_all_inputs(each, ports)) options.check_arguments(each);
  }
}

void PipelineCore::choose_schedule(const Microbatches& batch, const StepOptions& step,
                                   bool is_training) {
  const auto microbatches = num_microbatches(batch, step);
  schedule =
      is_training ? source.training(microbatches, graph) : source.forward_only(microbatches, graph);
}

StepPlan PipelineCore::plan(const Microbatches& batch, const StepOptions& step, bool is_training,
                            MemoryMeter* meter) const {
  return {.schedule = schedule.get(),
          .batch = &batch,
          .options = &step,
          .is_training = is_training,
          .step = counter.last_id(),
          .seed = seed,
          .draw = counter.draw(is_training),
          .zero = Recorder::Clock::now(),
          .meter = meter};
}

void PipelineCore::require_step() const {
  require<ArgumentError>(schedule != nullptr, "there is no recording before the first step");
}

void PipelineCore::require_sharded_parameters() const {
  const auto& shards = drivers().front()->shards();
  require<ArgumentError>(shards && shards->kind() == ShardKind::kParameters,
                         "weights that are not sharded are not gathered: set "
                         "PipelineOptions::shard to kParameters, with several replicas");
}

MeasuredLookahead PipelineCore::fit_unshard_lookahead() {
  require_sharded_parameters();
  return {};
}

void PipelineCore::set_unshard_lookahead(const std::vector<int32_t>& /*lookahead*/) {
  require_sharded_parameters();
}

RecordedRun PipelineCore::merge(std::vector<GatheredRank> ranks) const {
  const auto stages = static_cast<std::size_t>(placement().num_stages());
  RecordedRun run{.recording = {*schedule, graph, {}}, .schedule_name = source.name()};
  run.stages.resize(stages);
  run.launches = launches();
  const bool has_memory = std::ranges::all_of(
      ranks, [](const GatheredRank& rank) { return rank.memory.size() == rank.stages.size(); });
  if (has_memory) run.memory.resize(stages);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto own = placement().stages(Rank(static_cast<int32_t>(r)));
    for (std::size_t i = 0; i < own.size(); ++i) {
      const auto s = own[i].position();
      run.stages[s] = std::move(ranks[r].stages[i]);
      if (has_memory) run.memory[s] = ranks[r].memory[i];
    }
    run.recording.ranks.push_back(std::move(ranks[r].recording));
  }
  return run;
}

StepDriver::StepDriver(PipelineCore& core, Transport& transport, std::vector<Stage> stages)
    : place_(place_of_rank(transport, core.placement(), core.options.replicas)),
      stages_(sort_stages(std::move(stages), core.placement(), place_.own())),
      shards_(shards_of(core.options, place_, stages_)),
      wiring_(core.ports, core.placement(), place_),
      executor_(transport, place_, wiring_, stages_, core.placement(), core.options, core.callbacks,
                shards_.get()) {}

Stage* StepDriver::find_stage(StageId stage) {
  if (stage.value() < 0 || stage.value() >= wiring_.ports().num_stages()) return nullptr;
  const int32_t local = wiring_.local_index(stage);
  return local < 0 ? nullptr : &stages_[static_cast<std::size_t>(local)];
}

void StepDriver::release_kept() {
  for (Stage& stage : stages_) stage.release_kept();
}

void StepDriver::commit(bool is_training) {
  executor_.commit();
  const std::span<const StageMemory> measured = executor_.memory();
  if (is_training && !measured.empty()) memory_.assign(measured.begin(), measured.end());
}

GatheredRank StepDriver::recorded() {
  GatheredRank rank{.recording = executor_.recorded(),
                    .zero = to_nanoseconds(executor_.recorder().zero()),
                    .met = to_nanoseconds(Recorder::Clock::now()),
                    .memory = memory_};
  for (const Stage& stage : stages_) rank.stages.push_back(state_of(stage));
  return rank;
}

}  // namespace stagecraft
