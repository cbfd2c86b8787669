#include "stagecraft/runtime/launch/action_launcher.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/log.h"
#include "stagecraft/base/wait_tick.h"
#include "stagecraft/runtime/launch/last_operator.h"
#include "stagecraft/runtime/launch/static_batch.h"
#include "stagecraft/runtime/launch/static_values.h"
#include "stagecraft/runtime/launch/step_launcher.h"
#include "stagecraft/runtime/shared_casts.h"

namespace stagecraft::detail {

namespace {

// The number of keys whose steps are counted. An entry is a few numbers.
constexpr std::size_t kMaxSeenSteps = 64;

bool is_compute_slot(std::span<const Action> list, std::size_t offset) {
  return is_compute(list[offset].type()) || list[offset].is_overlap();
}

std::size_t slot_length(std::span<const Action> list, std::size_t offset) {
  return 1 + static_cast<std::size_t>(list[offset].num_parts());
}

/// The compute actions of a slot.
std::vector<Action> parts_of(std::span<const Action> list, std::size_t offset) {
  if (!list[offset].is_overlap()) return {list[offset]};
  const auto parts = list.subspan(offset + 1, slot_length(list, offset) - 1);
  return {parts.begin(), parts.end()};
}

RankResults copy_of(const RankResults& results) {
  return {clones(results.outputs), clones(results.losses), clones(results.added_losses)};
}

}  // namespace

/// Work could not be captured. The message is the reason.
class ActionLauncher::NotCaptured : public Error {
 public:
  using Error::Error;
};

/// A slot as a graph, with the memory through which it is connected to other ranks.
struct ActionLauncher::CapturedSlot {
  std::size_t offset = 0;
  std::vector<Action> parts;
  std::vector<std::vector<Values>> received;  // by part and edge
  std::vector<std::vector<Values>> sent;      // likewise
  std::optional<CapturedSeeds> seeds;
  std::unique_ptr<DeviceGraph> graph;
};

struct ActionLauncher::Captured {
  std::optional<StaticBatch> inputs;
  StepOptions options;
  std::vector<std::unique_ptr<CapturedSlot>> slots;
  RankResults results;
  std::vector<std::pair<at::Tensor, at::Tensor>> grads;  // parameters, and gradients made for them
  std::set<std::pair<StageId, bool>> rehearsed;          // stages, and whether their forward
};

ActionLauncher::ActionLauncher(PipelineCore& core, StepDriver& rank,
                               std::unique_ptr<GraphDevice> device)
    : core_(core),
      rank_(rank),
      device_(std::move(device)),
      seen_(kMaxSeenSteps),
      graphs_(static_cast<std::size_t>(core.options.max_graphs)) {
  for (const Stage& stage : rank.stages()) stages_.push_back(&stage);
}

ActionLauncher::~ActionLauncher() = default;

std::unique_ptr<ActionLauncher> make_action_launcher(PipelineCore& core, StepDriver& rank,
                                                     const Transport& transport) {
  const PipelineOptions& options = core.options;
  if (options.graphs == GraphMode::kOff || rank.stages().empty()) return nullptr;
  // Making a graph may wait for the whole device, which may wait for a rank that does the same.
  if (options.graphs == GraphMode::kAuto && transport.waits_on_device()) return nullptr;
  const auto refuse = [&](const std::string& reason) -> std::unique_ptr<ActionLauncher> {
    require<ArgumentError>(options.graphs != GraphMode::kOn,
                           "PipelineOptions::graphs is kOn, but {}", reason);
    return nullptr;
  };
  const c10::Device device = rank.stages().front().device();
  for (const Stage& stage : rank.stages()) {
    if (stage.device() != device) return refuse("the stages are on several devices");
  }
  if (options.zero_buffering) return refuse("PipelineOptions::zero_buffering is set");
  if (options.replicas > 1) return refuse("the gradients of several replicas are reduced");
  if (!options.ties.empty()) return refuse("ranks of several processes exchange tied weights");
  if (options.random == RandomSource::kProcess) {
    return refuse("random operators draw from the generators of the process");
  }
  std::unique_ptr<GraphDevice> graphs = find_graph_device(device);
  if (graphs == nullptr) {
    return refuse(fmt::format("this library has no graphs for the device {}", device.str()));
  }
  return std::make_unique<ActionLauncher>(core, rank, std::move(graphs));
}

bool ActionLauncher::decline(const std::string& reason) {
  counts_.reason = reason;
  ++counts_.run;
  return false;
}

bool ActionLauncher::launch(const StepPlan& plan, uint64_t shapes) {
  if (const std::string obstacle = find_obstacle(plan, core_.callbacks, stages_);
      !obstacle.empty()) {
    return decline(obstacle);
  }
  KeyOrReason found = key_of(plan, stages_, shapes);
  if (!found.key) return decline(found.reason);
  if (std::unique_ptr<Captured>* const step = graphs_.find(*found.key)) {
    replay(**step, plan);
    ++counts_.replayed;
    counts_.reason.clear();
    return true;
  }
  Seen* seen = seen_.find(*found.key);
  if (seen == nullptr) seen = &seen_.add(*found.key, {});
  if (!seen->reason.empty()) return decline(seen->reason);
  if (seen->runs++ == 0) return decline({});
  if (seen->runs == 2) {
    decline({});
    rehearse(plan);
    return true;
  }
  std::unique_ptr<Captured> step = capture(plan, *seen);
  if (!seen->reason.empty()) {
    announce(seen->reason + "; steps of these shapes are run instead");
    decline(seen->reason);
    return true;
  }
  ++counts_.captured;
  ++counts_.replayed;
  counts_.reason.clear();
  seen_.release(*found.key);
  graphs_.add(std::move(*found.key), std::move(step));
  counts_.graphs = static_cast<int64_t>(graphs_.size());
  return true;
}

// Runs the step on the stream of captures, so that everything that is created once (handles of
// libraries, workspaces) exists there.
void ActionLauncher::rehearse(const StepPlan& plan) {
  const std::unique_ptr<StreamScope> stream = device_->enter();
  at::autocast::clear_cache();
  device_->release_unused();
  executor().run(plan);
  at::autocast::clear_cache();
}

std::unique_ptr<ActionLauncher::Captured> ActionLauncher::capture(const StepPlan& plan,
                                                                  Seen& seen) {
  auto step = std::make_unique<Captured>();
  step->inputs.emplace(*plan.batch, plan.options->loss_arguments, device_->device());
  step->inputs->copy_from(*plan.batch, plan.options->loss_arguments);
  step->options = *plan.options;
  step->options.loss_arguments = step->inputs->loss_arguments();
  StepPlan captured = plan;
  captured.batch = &step->inputs->batch();
  captured.options = &step->options;
  std::vector<std::pair<at::Tensor, at::Tensor>> before;
  for (const Stage* stage : stages_) {
    for (const auto& [name, parameter] : stage->parameters()) {
      before.emplace_back(parameter, parameter.grad());
    }
  }
  at::autocast::clear_cache();
  device_->release_unused();
  rank_.release_kept();
  {
    const SharedCasts casts(rank_.stages());
    const auto list = plan.schedule->actions(rank_.place().own());
    executor().start(captured);
    for (std::size_t offset = 0; offset < list.size(); offset += slot_length(list, offset)) {
      if (is_compute_slot(list, offset) && seen.reason.empty()) {
        executor().run_slot_as(offset, [&] { capture_slot(captured, offset, *step, seen); });
      } else {
        executor().run_slot_at(offset);
      }
    }
    executor().finish();
  }
  rank_.release_kept();
  at::autocast::clear_cache();
  step->results = std::exchange(actions().results(), copy_of(actions().results()));
  if (plan.is_training) {
    for (const auto& [parameter, grad] : before) {
      const at::Tensor now = parameter.grad();
      if (now.defined() && !now.is_same(grad)) step->grads.emplace_back(parameter, now);
    }
  }
  return step;
}

std::unique_ptr<DeviceGraph> ActionLauncher::capture_work(Action action, CapturedSeeds& seeds,
                                                          const std::function<void()>& work) {
  const LastOperator watch;
  try {
    const std::unique_ptr<StreamScope> stream = device_->enter();
    try {
      device_->begin_capture();
      const CapturedDrawsGuard draws(seeds);
      work();
      return device_->end_capture();
    } catch (...) {
      device_->cancel_capture();
      throw;
    }
  } catch (const InterruptedError&) {
    at::autocast::clear_cache();
    throw;
  } catch (const std::exception&) {
    std::string reason = stagecraft::describe(std::current_exception());
    const std::string last = LastOperator::name();
    if (!last.empty()) reason += fmt::format(" (the last operator was {})", last);
    at::autocast::clear_cache();  // casts of the capture have no elements
    throw NotCaptured(
        fmt::format("{} cannot be captured as a graph: {}", to_string(action), reason));
  }
}

// Captures the first backward of each stage, and drops the graph. The capture for the step consumes
// the autograd graph that it reads, so it can be tried only once. A forward is tried in this way
// only as a part of an overlap: alone, it can be computed again.
void ActionLauncher::rehearse_parts(const StepPlan& plan, const CapturedSlot& slot, Captured& step,
                                    Seen& seen) {
  for (const Action part : slot.parts) {
    const bool is_forward = part.type() == ActionType::kForward;
    if (part.type() == ActionType::kBackwardWeight || (is_forward && slot.parts.size() == 1)) {
      continue;
    }
    if (!step.rehearsed.insert({part.stage(), is_forward}).second) continue;
    std::vector<std::pair<at::Tensor, at::Tensor>> grads;
    for (const Stage* stage : stages_) {
      for (const auto& [name, parameter] : stage->parameters()) {
        grads.emplace_back(parameter, parameter.grad());
      }
    }
    CapturedSeeds seeds(*device_, CapturedSeeds::Step{plan.seed, plan.draw},
                        plan.schedule->num_microbatches(), plan.schedule->num_stages());
    // Tensors that were made in the capture have no elements.
    const auto release_captured = [&] {
      for (auto& [parameter, grad] : grads) parameter.mutable_grad() = grad;
      rank_.release_kept();
    };
    try {
      capture_work(part, seeds, [&] { actions().rehearse(part); });
    } catch (const NotCaptured& error) {
      seen.reason = error.what();
    } catch (...) {
      release_captured();
      throw;
    }
    release_captured();
    if (!seen.reason.empty()) return;
    const bool has_forward = is_forward || std::ranges::any_of(stages_, [&](const Stage* stage) {
                               return stage->index() == part.stage() && stage->options().recompute;
                             });
    if (has_forward) at::autocast::clear_cache();
  }
}

void ActionLauncher::capture_slot(const StepPlan& plan, std::size_t offset, Captured& step,
                                  Seen& seen) {
  const auto list = plan.schedule->actions(rank_.place().own());
  auto slot = std::make_unique<CapturedSlot>();
  slot->offset = offset;
  slot->parts = parts_of(list, offset);
  const bool is_auto = core_.options.graphs == GraphMode::kAuto;
  for (const Action part : slot->parts) {
    std::vector<Values>& received = slot->received.emplace_back();
    for (Values* values : actions().router().receive_early(part)) {
      // A replay with a different number would fail.
      if (is_auto && !are_tensors(*values)) {
        seen.reason = fmt::format("{} takes a value of a different rank that is not a tensor",
                                  to_string(part));
      }
      received.push_back(static_copies(*values, device_->device()));
      *values = received.back();
    }
  }
  if (seen.reason.empty()) rehearse_parts(plan, *slot, step, seen);
  if (!seen.reason.empty()) return actions().compute(slot->parts);
  slot->seeds.emplace(*device_, CapturedSeeds::Step{plan.seed, plan.draw},
                      plan.schedule->num_microbatches(), plan.schedule->num_stages());
  const ActionRunner::Before before = actions().save(slot->parts);
  try {
    slot->graph = capture_work(list[offset], *slot->seeds, [&] { actions().compute(slot->parts); });
  } catch (const NotCaptured& error) {
    seen.reason = error.what();
    const bool is_forward = std::ranges::all_of(
        slot->parts, [](Action part) { return part.type() == ActionType::kForward; });
    // A backward that was begun cannot be begun again. Its rehearsal could be captured.
    if (!is_forward) throw Error(seen.reason);
    actions().restore(slot->parts, before);
    return actions().compute(slot->parts);
  }
  slot->graph->replay(slot->seeds->seeds({plan.seed, plan.draw}));
  for (const Action part : slot->parts) {
    std::vector<Values>& sent = slot->sent.emplace_back();
    for (Values* values : actions().router().outgoing(part)) {
      sent.push_back(*values);
      *values = clones(*values);
    }
  }
  step.slots.push_back(std::move(slot));
}

void ActionLauncher::replay_slot(CapturedSlot& slot, const StepPlan& plan) {
  Router& router = actions().router();
  for (std::size_t p = 0; p < slot.parts.size(); ++p) {
    const auto edges = router.receive_early(slot.parts[p]);
    for (std::size_t e = 0; e < edges.size(); ++e) {
      copy_values(*edges[e], slot.received[p][e]);
      edges[e]->clear();
    }
  }
  actions().mark_received(slot.parts.front());
  slot.graph->replay(slot.seeds->seeds({plan.seed, plan.draw}));
  for (std::size_t p = 0; p < slot.parts.size(); ++p) {
    const auto edges = router.outgoing(slot.parts[p]);
    // The next replay writes to the same memory, and a send may read later.
    for (std::size_t e = 0; e < edges.size(); ++e) *edges[e] = clones(slot.sent[p][e]);
  }
}

void ActionLauncher::replay(Captured& step, const StepPlan& plan) {
  step.inputs->copy_from(*plan.batch, plan.options->loss_arguments);
  const auto list = plan.schedule->actions(rank_.place().own());
  auto next = step.slots.begin();
  executor().start(plan);
  for (std::size_t offset = 0; offset < list.size(); offset += slot_length(list, offset)) {
    if (is_compute_slot(list, offset)) {
      executor().run_slot_as(offset, [&] { replay_slot(**next, plan); });
      ++next;
    } else {
      executor().run_slot_at(offset);
    }
  }
  for (auto& [parameter, grad] : step.grads) parameter.mutable_grad() = grad;
  executor().finish();
  actions().results() = copy_of(step.results);
}

}  // namespace stagecraft::detail
