#include "stagecraft/runtime/launch/step_launcher.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/log.h"
#include "stagecraft/base/wait_tick.h"
#include "stagecraft/microbatch/merge.h"
#include "stagecraft/runtime/launch/captured_seeds.h"
#include "stagecraft/runtime/launch/device_failure.h"
#include "stagecraft/runtime/launch/last_operator.h"
#include "stagecraft/runtime/launch/static_batch.h"
#include "stagecraft/runtime/launch/step_order.h"
#include "stagecraft/runtime/shared_casts.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft::detail {

namespace {

// The number of keys whose steps are counted. An entry is a few numbers.
constexpr std::size_t kMaxSeen = 64;

bool has_host_work(const StageOptions& options) {
  return options.around_forward || options.around_backward || options.weight_work ||
         options.on_unshard || options.on_reshard || options.on_reduce_grad ||
         options.on_wait_reduce_grad;
}

c10::IValue cloned(const c10::IValue& value) {
  return tree::map(value, [](const c10::IValue& leaf) -> c10::IValue {
    return leaf.isTensor() && leaf.toTensor().defined() ? leaf.toTensor().clone() : leaf;
  });
}

bool are_alike(const std::vector<at::Tensor>& tensors) {
  return !tensors.empty() && std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.sizes() == tensors.front().sizes() &&
           tensor.scalar_type() == tensors.front().scalar_type();
  });
}

}  // namespace

/// A step as a graph, and the tensors that the graph reads and writes.
struct StepLauncher::Captured {
  std::optional<StaticBatch> inputs;
  std::optional<CapturedSeeds> seeds;
  StepResult result;  // what a replay computes
  at::Tensor losses;  // all losses of the result in one tensor, if they are alike
  std::vector<std::pair<at::Tensor, at::Tensor>> grads;  // parameters, and gradients made for them
  /// The recordings of the capture, by rank, with the marks that a replay reaches.
  std::vector<std::pair<RankRecording, DeviceTimeline>> ranks;
  std::unique_ptr<DeviceGraph> graph;  // released first
};

StepLauncher::StepLauncher(Host host, std::unique_ptr<GraphDevice> device)
    : host_(std::move(host)),
      device_(std::move(device)),
      probe_(find_device_probe(device_->device())),
      seen_(kMaxSeen),
      graphs_(static_cast<std::size_t>(host_.core.options.max_graphs)) {
  for (const auto& rank : host_.ranks) {
    for (const Stage& stage : rank->stages()) stages_.push_back(&stage);
  }
}

StepLauncher::~StepLauncher() = default;

std::unique_ptr<StepLauncher> make_launcher(StepLauncher::Host host) {
  const PipelineOptions& options = host.core.options;
  if (options.graphs == GraphMode::kOff) return nullptr;
  const auto refuse = [&](const std::string& reason) -> std::unique_ptr<StepLauncher> {
    require<ArgumentError>(options.graphs != GraphMode::kOn,
                           "PipelineOptions::graphs is kOn, but {}", reason);
    return nullptr;
  };
  const c10::Device device = host.ranks.front()->stages().front().device();
  for (const auto& rank : host.ranks) {
    for (const Stage& stage : rank->stages()) {
      if (stage.device() != device) return refuse("the stages are on several devices");
    }
  }
  if (options.zero_buffering) return refuse("PipelineOptions::zero_buffering is set");
  if (options.random == RandomSource::kProcess) {
    return refuse("random operators draw from the generators of the process");
  }
  std::unique_ptr<GraphDevice> graphs = find_graph_device(device);
  if (graphs == nullptr) {
    return refuse(fmt::format("this library has no graphs for the device {}", device.str()));
  }
  return std::make_unique<StepLauncher>(std::move(host), std::move(graphs));
}

std::string find_obstacle(const StepPlan& plan, const Callbacks& callbacks,
                          const std::vector<const Stage*>& stages) {
  if (plan.meter != nullptr) return "the step measures memory";
  if (!callbacks.empty()) return "the pipeline has handlers or observers of actions";
  for (const Stage* stage : stages) {
    if (has_host_work(stage->options())) {
      return fmt::format("stage {} has hooks (StageOptions)", stage->index().value());
    }
  }
  return {};
}

StepLauncher::Outcome StepLauncher::decline(const std::string& reason) {
  counts_.reason = reason;
  ++counts_.run;
  return Outcome::kNotLaunched;
}

// The device may report the error of an earlier kernel in any call.
StepLauncher::Outcome StepLauncher::launch(StepPlan& plan, StepResult& result) {
  try {
    return launch_step(plan, result);
  } catch (...) {
    rethrow_explained(probe_.get(), device_->device());
  }
}

StepLauncher::Outcome StepLauncher::launch_step(StepPlan& plan, StepResult& result) {
  const bool must = host_.core.options.graphs == GraphMode::kOn;
  if (const std::string obstacle = find_obstacle(plan, host_.core.callbacks, stages_);
      !obstacle.empty()) {
    require<Error>(!must || plan.meter != nullptr, "PipelineOptions::graphs is kOn, but {}",
                   obstacle);
    return decline(obstacle);
  }
  KeyOrReason found = key_of(plan, stages_);
  if (!found.key) {
    require<Error>(!must, "PipelineOptions::graphs is kOn, but {}", found.reason);
    return decline(found.reason);
  }
  StepKey& key = *found.key;
  if (std::unique_ptr<Captured>* const step = graphs_.find(key)) {
    result = replay(**step, plan);
    return Outcome::kReplayed;
  }
  Seen* seen = seen_.find(key);
  if (seen == nullptr) seen = &seen_.add(key, {});
  if (seen->is_refused) {
    require<Error>(!must, "{}", seen->reason);
    return decline(seen->reason);
  }
  if (seen->runs == 0) {
    ++seen->runs;
    return decline({});
  }
  if (seen->runs == 1) {
    ++seen->runs;
    decline({});
    rehearse(plan);
    return Outcome::kExecuted;
  }
  std::unique_ptr<Captured> step;
  try {
    step = capture(plan);
  } catch (const InterruptedError&) {
    host_.recover();
    throw;
  } catch (const std::exception&) {
    const std::string last = LastOperator::name();
    seen->is_refused = true;
    seen->reason =
        fmt::format("the step cannot be captured as a graph: {}{}",
                    stagecraft::describe(std::current_exception()),
                    last.empty() ? "" : fmt::format(" (the last operator was {})", last));
    host_.recover();
    plan.step = host_.core.counter.next_id();
    if (must) throw Error(seen->reason);
    announce(seen->reason + "; steps of these shapes are run instead");
    return decline(seen->reason);
  }
  ++counts_.captured;
  seen_.release(key);
  Captured& kept = *graphs_.add(std::move(key), std::move(step));
  counts_.graphs = static_cast<int64_t>(graphs_.size());
  if (probe_) probe_->reset_peak();
  result = replay(kept, plan);
  if (probe_) counts_.peak_replayed = probe_->memory().peak_reserved;
  return Outcome::kReplayed;
}

// Casts of weights are kept by the thread. A graph must neither read those of an earlier step nor
// leave its own.
void StepLauncher::release_casts() {
  at::autocast::clear_cache();
}

// Executes all ranks on this thread. After an exception, Host::recover brings executors and world
// back into use.
void StepLauncher::execute_here(const StepPlan& plan) {
  const auto executor = [&](Rank rank) -> Executor& {
    return host_.ranks[rank.position()]->executor();
  };
  std::optional<SharedCasts> casts;
  if (std::ranges::all_of(stages_, [](const Stage* stage) { return stage->shares_casts(); })) {
    casts.emplace(std::span<const Stage>());
  }
  for (const auto& rank : host_.ranks) rank->executor().start(plan);
  for (const RankSlot& slot : one_thread_order(*plan.schedule, host_.core.graph)) {
    executor(slot.rank).run_slot_at(slot.offset);
  }
  for (const auto& rank : host_.ranks) rank->executor().send_ties();
  for (const auto& rank : host_.ranks) rank->executor().finish();
}

void StepLauncher::rehearse(const StepPlan& plan) {
  const std::unique_ptr<StreamScope> stream = device_->enter();
  release_casts();
  device_->release_unused();
  if (probe_) probe_->reset_peak();
  try {
    execute_here(plan);
  } catch (...) {
    release_casts();
    host_.recover();
    throw;
  }
  release_casts();
}

void StepLauncher::note_collected() {
  if (probe_) counts_.peak_run = probe_->memory().peak_reserved;
}

std::unique_ptr<StepLauncher::Captured> StepLauncher::capture(const StepPlan& plan) {
  auto step = std::make_unique<Captured>();
  step->inputs.emplace(*plan.batch, plan.options->loss_arguments, device_->device());
  step->inputs->copy_from(*plan.batch, plan.options->loss_arguments);
  step->seeds.emplace(*device_, CapturedSeeds::Step{plan.seed, plan.draw},
                      plan.schedule->num_microbatches(), plan.schedule->num_stages());
  std::vector<std::pair<at::Tensor, at::Tensor>> before;
  for (const Stage* stage : stages_) {
    for (const auto& [name, parameter] : stage->parameters()) {
      before.emplace_back(parameter, parameter.grad());
    }
  }
  StepOptions options = *plan.options;
  options.loss_arguments = step->inputs->loss_arguments();
  StepPlan captured = plan;
  captured.batch = &step->inputs->batch();
  captured.options = &options;
  captured.is_captured = true;

  const std::shared_ptr<DeviceMarks> marks = make_marks(*plan.schedule);
  for (const auto& rank : host_.ranks) {
    rank->executor().set_timeline(DeviceTimeline(marks, DeviceTimeline::Kind::kChain));
  }
  const std::unique_ptr<StreamScope> stream = device_->enter();
  release_casts();
  device_->release_unused();
  const LastOperator watch;
  try {
    device_->begin_capture();
    const CapturedDrawsGuard draws(*step->seeds);
    record(captured, *step);
    step->graph = device_->end_capture();
  } catch (...) {
    release_casts();
    device_->cancel_capture();
    for (const auto& rank : host_.ranks) {
      rank->release_kept();  // tensors of the capture have no elements
      rank->executor().set_timeline({});
    }
    throw;
  }
  release_casts();
  for (const auto& rank : host_.ranks) {
    Executor& executor = rank->executor();
    if (marks) step->ranks.emplace_back(executor.recorder().view(), executor.timeline());
    executor.set_timeline({});
    rank->commit(plan.is_training);
  }
  if (plan.is_training) {
    for (const auto& [parameter, grad] : before) {
      const at::Tensor now = parameter.grad();
      if (now.defined() && !now.is_same(grad)) step->grads.emplace_back(parameter, now);
    }
  }
  return step;
}

// Null if the device has no marks. A chain has a mark at its begin, and one for each compute
// action.
std::shared_ptr<DeviceMarks> StepLauncher::make_marks(const Schedule& schedule) {
  std::size_t limit = 1;
  for (const ActionList& list : schedule.lists()) {
    limit += static_cast<std::size_t>(
        std::ranges::count_if(list, [](Action action) { return is_compute(action.type()); }));
  }
  return device_->make_marks(limit);
}

// Called in a capture: executes the step, and collects its results as tensors of the graph.
void StepLauncher::record(const StepPlan& plan, Captured& step) {
  for (const auto& rank : host_.ranks) rank->release_kept();
  execute_here(plan);
  for (const auto& rank : host_.ranks) rank->release_kept();
  // A replay merges the outputs into memory of the caller.
  StepOptions options = *plan.options;
  if (options.outputs == OutputMode::kMerged) options.outputs = OutputMode::kEach;
  step.result = host_.collect(options);
  const c10::NoGradGuard no_grad;
  if (are_alike(step.result.losses)) step.losses = at::stack(step.result.losses);
}

StepResult StepLauncher::replay(Captured& step, const StepPlan& plan) {
  step.inputs->copy_from(*plan.batch, plan.options->loss_arguments);
  const std::vector<uint64_t> seeds = step.seeds->seeds({plan.seed, plan.draw});
  step.graph->replay(seeds);
  ++counts_.replayed;
  counts_.reason.clear();
  has_recording_ = !step.ranks.empty();
  for (std::size_t r = 0; r < step.ranks.size(); ++r) {
    host_.ranks[r]->executor().set_replayed(step.ranks[r].first, step.ranks[r].second, plan.zero);
  }
  for (auto& [parameter, grad] : step.grads) parameter.mutable_grad() = grad;
  // The next replay writes to the same memory, and the caller may keep its results.
  const c10::NoGradGuard no_grad;
  StepResult result;
  if (plan.options->outputs == OutputMode::kMerged) {
    result.output = merge_chunks(step.result.outputs);
  } else {
    for (const c10::IValue& output : step.result.outputs) result.outputs.push_back(cloned(output));
  }
  result.weights = step.result.weights;
  if (step.losses.defined()) {
    const at::Tensor losses = step.losses.clone();
    for (int64_t m = 0; m < losses.size(0); ++m) result.losses.push_back(losses.select(0, m));
  } else {
    for (const at::Tensor& loss : step.result.losses) {
      result.losses.push_back(loss.defined() ? loss.clone() : loss);
    }
  }
  for (const at::Tensor& loss : step.result.added_losses) {
    result.added_losses.push_back(loss.defined() ? loss.clone() : loss);
  }
  return result;
}

}  // namespace stagecraft::detail
