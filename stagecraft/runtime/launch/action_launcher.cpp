#include "stagecraft/runtime/launch/action_launcher.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/log.h"
#include "stagecraft/runtime/launch/captured_seeds.h"
#include "stagecraft/runtime/launch/last_operator.h"
#include "stagecraft/runtime/launch/static_batch.h"
#include "stagecraft/runtime/launch/step_launcher.h"
#include "stagecraft/runtime/shared_casts.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft::detail {

namespace {

constexpr std::size_t kMaxSeenSteps = 64;

using Values = std::vector<c10::IValue>;

bool is_tensor(const c10::IValue& leaf) {
  return leaf.isTensor() && leaf.toTensor().defined();
}

/// Tensors of their own, with the elements of the values.
Values static_copies(const Values& values, c10::Device device) {
  const c10::NoGradGuard no_grad;
  Values copies;
  for (const c10::IValue& value : values) {
    copies.push_back(tree::map(value, [&](const c10::IValue& leaf) -> c10::IValue {
      if (!is_tensor(leaf)) return leaf;
      const at::Tensor& tensor = leaf.toTensor();
      at::Tensor copy = at::empty_like(tensor, tensor.options().device(device));
      copy.copy_(tensor, /*non_blocking=*/true);
      return copy.requires_grad_(tensor.requires_grad());
    }));
  }
  return copies;
}

Values clones(const Values& values) {
  const c10::NoGradGuard no_grad;
  Values copies;
  for (const c10::IValue& value : values) {
    copies.push_back(tree::map(value, [](const c10::IValue& leaf) -> c10::IValue {
      if (!is_tensor(leaf)) return leaf;
      const at::Tensor& tensor = leaf.toTensor();
      return tensor.clone().requires_grad_(tensor.requires_grad());
    }));
  }
  return copies;
}

std::vector<at::Tensor> clones(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.defined() ? tensor.clone() : tensor);
  }
  return copies;
}

/// Copies tensors to the memory that a graph reads. Everything else must be as it was captured.
void copy_values(const Values& from, const Values& to) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> sources;
  std::vector<at::Tensor> targets;
  const Values given = tree::leaves(tree::tuple(from));
  const Values expected = tree::leaves(tree::tuple(to));
  bool fits = given.size() == expected.size();
  for (std::size_t i = 0; fits && i < given.size(); ++i) {
    if (!is_tensor(expected[i])) {
      fits = !is_tensor(given[i]) && given[i] == expected[i];
      continue;
    }
    fits = is_tensor(given[i]) && given[i].toTensor().sizes() == expected[i].toTensor().sizes() &&
           given[i].toTensor().scalar_type() == expected[i].toTensor().scalar_type();
    sources.push_back(given[i].toTensor());
    targets.push_back(expected[i].toTensor().detach());
  }
  require<MetadataError>(fits,
                         "a value of a different rank differs in shape or type from that of the "
                         "captured step; set PipelineOptions::graphs to kOff");
  if (!targets.empty()) at::_foreach_copy_(targets, sources, /*non_blocking=*/true);
}

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

}  // namespace

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
  Values outputs;
  std::vector<at::Tensor> losses;
  std::vector<at::Tensor> added_losses;
  std::vector<std::pair<at::Tensor, at::Tensor>> grads;  // parameters, and gradients made for them
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

std::unique_ptr<ActionLauncher> make_action_launcher(PipelineCore& core, StepDriver& rank) {
  const PipelineOptions& options = core.options;
  // Not by default: see docs/gpu.md.
  if (options.graphs != GraphMode::kOn) return nullptr;
  const auto refuse = [&](const std::string& reason) {
    throw ArgumentError(fmt::format("PipelineOptions::graphs is kOn, but {}", reason));
  };
  if (rank.stages().empty()) return nullptr;
  const c10::Device device = rank.stages().front().device();
  for (const Stage& stage : rank.stages()) {
    if (stage.device() != device) refuse("the stages are on several devices");
  }
  if (options.replicas > 1) refuse("the gradients of several replicas are reduced");
  if (!options.ties.empty()) refuse("ranks of several processes exchange tied weights");
  if (options.random == RandomSource::kProcess) {
    refuse("random operators draw from the generators of the process");
  }
  std::unique_ptr<GraphDevice> graphs = find_graph_device(device);
  if (graphs == nullptr) {
    refuse(fmt::format("this library has no graphs for the device {}", device.str()));
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

// So that everything that is created once exists on the stream of captures.
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
  step->outputs = executor().take_outputs();
  step->losses = executor().take_losses();
  step->added_losses = executor().take_added_losses();
  executor().set_results(clones(step->outputs), clones(step->losses), clones(step->added_losses));
  if (plan.is_training) {
    for (const auto& [parameter, grad] : before) {
      const at::Tensor now = parameter.grad();
      if (now.defined() && !now.is_same(grad)) step->grads.emplace_back(parameter, now);
    }
  }
  return step;
}

void ActionLauncher::capture_slot(const StepPlan& plan, std::size_t offset, Captured& step,
                                  Seen& seen) {
  const auto list = plan.schedule->actions(rank_.place().own());
  auto slot = std::make_unique<CapturedSlot>();
  slot->offset = offset;
  slot->parts = parts_of(list, offset);
  const auto give_static_values = [&] {
    for (std::size_t p = 0; p < slot->parts.size(); ++p) {
      const auto edges = executor().router().receive_early(slot->parts[p]);
      for (std::size_t e = 0; e < edges.size(); ++e) *edges[e] = slot->received[p][e];
    }
  };
  for (const Action part : slot->parts) {
    std::vector<Values>& received = slot->received.emplace_back();
    for (Values* values : executor().router().receive_early(part)) {
      received.push_back(static_copies(*values, device_->device()));
      *values = received.back();
    }
  }
  slot->seeds.emplace(*device_, CapturedSeeds::Step{plan.seed, plan.draw},
                      plan.schedule->num_microbatches(), plan.schedule->num_stages());
  const LastOperator watch;
  try {
    const std::unique_ptr<StreamScope> stream = device_->enter();
    try {
      device_->begin_capture();
      const CapturedDrawsGuard draws(*slot->seeds);
      executor().compute(offset);
      slot->graph = device_->end_capture();
    } catch (...) {
      device_->cancel_capture();
      throw;
    }
  } catch (const std::exception&) {
    const std::string last = LastOperator::name();
    seen.reason = fmt::format("{} cannot be captured as a graph: {}{}", to_string(list[offset]),
                              stagecraft::describe(std::current_exception()),
                              last.empty() ? "" : fmt::format(" (the last operator was {})", last));
    const bool is_forward = std::ranges::all_of(
        slot->parts, [](Action part) { return part.type() == ActionType::kForward; });
    // A backward that was begun cannot be begun again.
    if (!is_forward) throw Error(seen.reason);
    give_static_values();
    executor().compute(offset);
    return;
  }
  slot->graph->replay(slot->seeds->seeds({plan.seed, plan.draw}));
  for (const Action part : slot->parts) {
    std::vector<Values>& sent = slot->sent.emplace_back();
    for (Values* values : executor().router().outgoing(part)) {
      sent.push_back(*values);
      *values = clones(*values);
    }
  }
  step.slots.push_back(std::move(slot));
}

void ActionLauncher::replay_slot(CapturedSlot& slot, const StepPlan& plan) {
  Router& router = executor().router();
  for (std::size_t p = 0; p < slot.parts.size(); ++p) {
    const auto edges = router.receive_early(slot.parts[p]);
    for (std::size_t e = 0; e < edges.size(); ++e) {
      copy_values(*edges[e], slot.received[p][e]);
      edges[e]->clear();
    }
  }
  executor().mark_received(slot.parts.front());
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
  executor().set_results(clones(step.outputs), clones(step.losses), clones(step.added_losses));
}

}  // namespace stagecraft::detail
