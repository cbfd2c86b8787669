#include "stagecraft/runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/device_error.h"
#include "stagecraft/base/log.h"
#include "stagecraft/base/wait_tick.h"
#include "stagecraft/runtime/action_range.h"
#include "stagecraft/runtime/grad_reducer.h"
#include "stagecraft/runtime/piece_reducer.h"
#include "stagecraft/runtime/shared_casts.h"
#include "stagecraft/runtime/values.h"
#include "stagecraft/schedule/slot.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

// Without history and without spare memory. The result of a reduction may own the storage of its
// input (that of mse_loss does), which would be kept until the end of the step.
at::Tensor alone(const at::Tensor& scalar) {
  at::Tensor data = scalar.variable_data();
  return data.storage().nbytes() > data.nbytes() ? data.clone() : data;
}

StageMemory memory_of_stage(const Stage& stage) {
  StageMemory memory;
  memory.stage = stage.index();
  for (const auto& [name, parameter] : stage.parameters()) {
    const auto bytes = static_cast<int64_t>(parameter.nbytes());
    memory.parameters += bytes;
    if (parameter.requires_grad()) memory.gradients += bytes;
  }
  return memory;
}

int64_t bytes_of_grad(const at::Tensor& parameter) {
  return parameter.grad().defined() ? static_cast<int64_t>(parameter.grad().nbytes()) : 0;
}

std::unique_ptr<ReplicaReducer> make_reducer(Transport& transport, const ReplicaPlace& place,
                                             std::span<Stage> stages, const TiedWeights& ties,
                                             ProgressMark& progress, ParameterShards* shards) {
  if (shards != nullptr && shards->kind() >= ShardKind::kGradients) {
    return std::make_unique<PieceReducer>(transport, *shards, stages, progress);
  }
  return std::make_unique<GradReducer>(transport, place, stages, ties, progress);
}

/// Null if the stages are on the CPU or on several devices.
std::unique_ptr<detail::DeviceProbe> probe_of(std::span<const Stage> stages) {
  if (stages.empty()) return nullptr;
  const c10::Device device = stages.front().device();
  const bool is_one =
      std::ranges::all_of(stages, [&](const Stage& stage) { return stage.device() == device; });
  return is_one ? detail::find_device_probe(device) : nullptr;
}

}  // namespace

Executor::Executor(Transport& transport, const ReplicaPlace& place, const Wiring& wiring,
                   std::span<Stage> stages, const Placement& placement,
                   const PipelineOptions& options, const Callbacks& callbacks,
                   ParameterShards* shards)
    : transport_(transport),
      place_(place),
      wiring_(wiring),
      stages_(stages),
      options_(options),
      callbacks_(callbacks),
      device_(probe_of(stages)),
      progress_(std::make_shared<ProgressMark>()),
      router_(transport, wiring_, recorder_, *progress_, options),
      shards_(shards),
      ties_(transport, placement, place, stages, options.ties, shards),
      reducer_(make_reducer(transport, place, stages, ties_, *progress_, shards)),
      gathers_(transport, shards, recorder_, *progress_) {
  if (!device_) return;
  own_marks_ = device_->make_marks();
  pending_ = detail::PendingActions::make(transport.rank(), stages.front().device());
}

void Executor::set_replayed(const RankRecording& capture, const detail::DeviceTimeline& timeline,
                            Recorder::Time zero) {
  recorder_.set_replayed(capture, zero);
  timeline_ = timeline;
  is_read_ = false;
}

const RankRecording& Executor::recorded() {
  if (std::exchange(is_read_, true)) return recorder_.view();
  try {
    recorder_.set_device(timeline_.read(recorder_.zero()));
    if (device_) {
      const detail::DeviceProbe::Memory memory = device_->memory();
      recorder_.set_device_memory({memory.allocated, memory.peak_allocated, memory.reserved});
    }
  } catch (const std::exception&) {
    log(LogLevel::kWarning,
        fmt::format("rank {}: the device has no times of the step: {}", transport_.rank().value(),
                    describe(std::current_exception())));
  }
  return recorder_.view();
}

void Executor::publish_progress() {
  transport_.publish([progress = progress_] { return progress->read(); });
}

// A failure on this rank, or one that it learns of, ends the rank's step.
template <typename Part>
void Executor::guarded(Part&& part) {
  try {
    part();
  } catch (...) {
    fail(std::current_exception());
  }
}

void Executor::connect(Deadline deadline) {
  std::vector<Rank> peers = wiring_.peers();
  const std::vector<Rank> tied = ties_.peers();
  peers.insert(peers.end(), tied.begin(), tied.end());
  for (int32_t replica = 0; replica < place_.replicas; ++replica) {
    if (replica != place_.replica()) peers.push_back(place_.in_replica(replica));
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  transport_.connect(peers, deadline);
}

void Executor::run(const StepPlan& plan) {
  start_list(plan);
  guarded([&] {
    if (plan.meter != nullptr) {
      if (device_) device_->reset_peak();
      const MemoryMeter::Scope scope(*plan.meter, transport_.rank().value());
      plan.meter->reset_peak(transport_.rank().value());
      for (const Stage& stage : stages_) memory_.push_back(memory_of_stage(stage));
      recorder_.start_memory(bytes_held());
      run_list();
      recorder_.set_peak_memory(
          std::max(peak_memory_, plan.meter->peak(transport_.rank().value())));
    } else if (shards_ != nullptr && shards_->kind() == ShardKind::kParameters) {
      run_list();  // casts of weights would outlive the weights
    } else {
      // Not if memory is measured: the casts would count for the first forward.
      const SharedCasts casts(stages_);
      run_list();
    }
  });
}

void Executor::start(const StepPlan& plan) {
  start_list(plan);
  guarded([&] { start_values(); });
}

void Executor::run_slot_at(std::size_t offset) {
  guarded([&] { run_slot_of(offset); });
}

void Executor::run_slot_as(std::size_t offset, const std::function<void()>& work) {
  guarded([&] {
    if (const auto reason = transport_.abort_reason()) {
      throw PeerError(reason->message, reason->rank, reason->cause);
    }
    WaitTick::call_if_due();
    note_complete();
    const Action action = list()[offset];
    slot_ = slot_at(offset);
    begin(action, offset);
    work();
    end(action, offset);
    // The parts of an overlap are one launch.
    for (std::size_t part = 1; part < slot_.size(); ++part) {
      begin(slot_[part], offset + part);
      end(slot_[part], offset + part);
    }
  });
}

void Executor::compute(std::size_t offset) {
  is_computing_ = true;
  try {
    for (const Action action : slot_at(offset)) {
      if (!action.is_overlap()) run_built_in(action);
    }
  } catch (...) {
    is_computing_ = false;
    throw;
  }
  is_computing_ = false;
}

void Executor::rehearse(Action part) {
  is_computing_ = true;
  const Router::Taken taken = router_.save_taken(part);
  const MicrobatchId m = part.microbatch();
  const auto end = [&] {
    is_computing_ = false;
    router_.restore_taken(part, taken);
  };
  try {
    if (part.type() == ActionType::kForward) {
      stage(part).forward(m, take_inputs(part), forward_options(part));
    } else {
      stage(part).rehearse_backward(m, take_output_grads(part), router_.weight(m));
    }
  } catch (...) {
    end();
    if (part.type() == ActionType::kForward) stage(part).discard(m);
    throw;
  }
  end();
  if (part.type() == ActionType::kForward) stage(part).discard(m);
}

Executor::Before Executor::save(std::size_t offset) {
  Before before{.taken = {}, .added_losses = added_losses_};
  for (const Action part : slot_at(offset)) {
    const bool takes = part.type() == ActionType::kForward;
    before.taken.push_back(takes ? router_.save_taken(part) : Router::Taken{});
  }
  return before;
}

void Executor::restore(std::size_t offset, const Before& before) {
  added_losses_ = before.added_losses;
  std::size_t i = 0;
  for (const Action part : slot_at(offset)) {
    const Router::Taken& taken = before.taken[i++];
    if (part.type() != ActionType::kForward) continue;
    stage(part).discard(part.microbatch());
    router_.restore_taken(part, taken);
  }
}

void Executor::mark_received(Action action) {
  if (action.type() != ActionType::kBackwardWeight) {
    mark_ready(action, action.type() == ActionType::kForward);
  }
}

void Executor::set_results(std::vector<c10::IValue> outputs, std::vector<at::Tensor> losses,
                           std::vector<at::Tensor> added_losses) {
  outputs_ = std::move(outputs);
  losses_ = std::move(losses);
  added_losses_ = std::move(added_losses);
}

void Executor::send_ties() {
  if (plan_.is_training) guarded([&] { ties_.send(plan_.step); });
}

void Executor::finish() {
  guarded([&] { finish_list(); });
}

void Executor::start_list(const StepPlan& plan) {
  plan_ = plan;
  const auto microbatches = static_cast<std::size_t>(plan.schedule->num_microbatches());
  outputs_.assign(microbatches, {});
  losses_.assign(microbatches, {});
  added_losses_.assign(microbatches, {});
  note_missing_grads();
  progress_->start_step(plan.step);
  recorder_.start(list().size(), plan.zero);
  timeline_ = given_timeline_.has_marks() ? given_timeline_ : detail::DeviceTimeline(own_marks_);
  timeline_.start(list().size());
  is_read_ = !timeline_.has_marks();
  if (pending_) pending_->start();
  in_flight_.clear();
  for (const Stage& stage : stages_) {
    in_flight_.push_back({.stage = stage.index(), .recomputes = stage.options().recompute});
  }
  memory_.clear();
  peak_memory_ = 0;
}

std::vector<double> Executor::weights() const {
  std::vector<double> weights;
  for (int32_t m = 0; m < plan_.schedule->num_microbatches(); ++m) {
    weights.push_back(router_.weight(MicrobatchId(m)));
  }
  return weights;
}

void Executor::run_list() {
  start_values();
  for (std::size_t offset = 0; offset < list().size();) offset += run_slot_of(offset);
  finish_list();
}

void Executor::start_values() {
  if (!device_failure_.empty()) {
    throw DeviceError("the device failed in an earlier step: " + device_failure_);
  }
  router_.start(plan_.step, static_cast<std::size_t>(plan_.schedule->num_microbatches()),
                plan_.is_training, *plan_.batch, plan_.meter);
  for (Stage& stage : stages_) stage.begin_step();
  if (shards_ != nullptr) shards_->check(stages_);
  gathers_.start(plan_.step);
  if (plan_.is_training) {
    reducer_->start(plan_.options->reduce_grads);
    ties_.start();
    for (Stage& stage : stages_) {
      stage.expect_backwards(
          static_cast<std::size_t>(std::ranges::count_if(list(), [&](const Action action) {
            return (action.type() == ActionType::kBackward ||
                    action.type() == ActionType::kBackwardWeight) &&
                   action.stage() == stage.index();
          })));
    }
  }
}

// Returns the number of actions in the slot.
std::size_t Executor::run_slot_of(std::size_t offset) {
  const std::span<const Action> slot = slot_at(offset);
  run_slot(slot, offset);
  return slot.size();
}

void Executor::finish_list() {
  router_.finish();
  is_exchanging_ = true;
  gathers_.finish(Deadline::after(options_.timeout));
  is_exchanging_ = false;
  if (plan_.is_training) exchange_grads();
}

/// Bytes of the parameters and of their existing gradients.
int64_t Executor::bytes_held() const {
  int64_t bytes = 0;
  for (const Stage& stage : stages_) {
    for (const auto& [name, parameter] : stage.parameters()) {
      const bool is_sharded = shards_ != nullptr && shards_->find_unit(parameter) != nullptr;
      if (!is_sharded) bytes += static_cast<int64_t>(parameter.nbytes());
      bytes += bytes_of_grad(parameter);
    }
  }
  if (shards_ == nullptr) return bytes;
  bytes += shards_->kind() == ShardKind::kParameters ? shards_->piece_bytes() : 0;
  for (const auto& unit : shards_->units()) bytes += bytes_of_grad(unit->piece());
  return bytes + shards_->whole_bytes();
}

// An overlap waits for the weights of all its parts.
void Executor::wait_for_weights(Action action, std::size_t offset) {
  if (shards_ == nullptr) return;
  is_exchanging_ = true;
  const Deadline deadline = Deadline::after(options_.timeout);
  if (is_compute(action.type())) gathers_.wait(action.stage(), offset, deadline);
  if (action.is_overlap()) {
    for (const Action part : slot_.subspan(1)) gathers_.wait(part.stage(), offset, deadline);
  }
  is_exchanging_ = false;
}

// Replicas first, so that the copies of a tied weight have the same gradients in each of them.
void Executor::exchange_grads() {
  is_exchanging_ = true;
  reducer_->finish(plan_.step, Deadline::after(options_.timeout));
  {
    const ProgressMark::Waiting waiting(*progress_, "gradients of tied weights");
    ties_.finish(plan_.step, options_.timeout);
  }
  is_exchanging_ = false;
}

void Executor::wait_reduced(StageId stage) {
  is_exchanging_ = true;
  reducer_->wait(stage, Deadline::after(options_.timeout));
  is_exchanging_ = false;
}

void Executor::run_slot(std::span<const Action> actions, std::size_t offset) {
  if (const auto reason = transport_.abort_reason()) {
    throw PeerError(reason->message, reason->rank, reason->cause);
  }
  WaitTick::call_if_due();
  reducer_->poll();
  gathers_.poll();
  note_complete();
  slot_ = actions;
  const Action action = actions.front();
  if (!action.is_overlap()) {
    if (!action.is_idle()) run_action(action, offset);
    return;
  }
  const std::span<const Action> parts = actions.subspan(1);
  const ActionRange range(actions);
  begin(action, offset);
  if (const ActionHandler* handler = callbacks_.find_handler(ActionType::kOverlap)) {
    ActionContext context(*this, action, parts, offset + 1);
    (*handler)(context);
  } else {
    for (std::size_t i = 0; i < parts.size(); ++i) run_action(parts[i], offset + 1 + i);
  }
  end(action, offset);
}

void Executor::run_action(Action action, std::size_t offset) {
  const ActionHandler* handler = callbacks_.find_handler(action.type());
  if (handler == nullptr || is_skipped(action)) return run_recorded(action, offset);
  const ActionRange range(std::span(&action, 1));
  begin(action, offset);
  ActionContext context(*this, action, std::span(&action, 1), offset);
  (*handler)(context);
  end(action, offset);
}

void Executor::run_recorded(Action action, std::size_t offset) {
  const ActionRange range(std::span(&action, 1));
  begin(action, offset);
  if (plan_.meter != nullptr && has_microbatch(action.type())) {
    run_measured(action, offset);
  } else {
    run_built_in(action);
  }
  end(action, offset);
}

void Executor::begin(Action action, std::size_t offset) {
  current_ = action;
  progress_->begin(action);
  router_.set_offset(offset);
  recorder_.begin(offset);
  if (pending_) pending_->launched(action);
  timeline_.begin(offset);
  if (device_ && action.type() == ActionType::kForward) allocated_ = device_->memory().allocated;
  for (const ActionObserver& observer : callbacks_.observers()) {
    observer(transport_.rank(), action, ActionPhase::kBegin);
  }
  wait_for_weights(action, offset);
}

void Executor::end(Action action, std::size_t offset) {
  for (const ActionObserver& observer : callbacks_.observers()) {
    observer(transport_.rank(), action, ActionPhase::kEnd);
  }
  timeline_.end(offset, is_compute(action.type()));
  note_kept(action);
  recorder_.end(offset);
  const bool is_part = slot_.front().is_overlap() && !action.is_overlap();
  current_ = is_part ? slot_.front() : Action();
  progress_->end(action, current_);
}

Arguments Executor::take_inputs(Action action) {
  Arguments inputs = router_.take_inputs(action);
  if (device_) {
    in_flight_[static_cast<std::size_t>(wiring_.local_index(action.stage()))].inputs =
        bytes_of(inputs.args);
  }
  mark_ready(action, /*is_forward=*/true);
  return inputs;
}

std::vector<c10::IValue> Executor::take_output_grads(Action action) {
  std::vector<c10::IValue> grads = router_.take_output_grads(action);
  mark_ready(action, /*is_forward=*/false);
  return grads;
}

// The host has the values now. The device has them when it reaches the mark.
void Executor::mark_ready(Action action, bool is_forward) {
  if (is_computing_) return;  // perhaps in a capture
  const StageWires& wires =
      wiring_.stages()[static_cast<std::size_t>(wiring_.local_index(action.stage()))];
  const auto& edges = is_forward ? wires.in : wires.out;
  if (std::ranges::all_of(edges, [](const WireEdge& edge) { return edge.is_local; })) return;
  timeline_.ready(router_.offset());
}

// The last point at which the device was well.
void Executor::note_complete() {
  if (pending_ && !plan_.is_captured) pending_->complete(timeline_.num_complete());
}

// What the microbatches in flight hold on the device, for the message of a device without memory.
// If ranks share a device, their allocations count for each other.
void Executor::note_kept(Action action) {
  if (!device_ || !plan_.is_training || !is_compute(action.type())) return;
  detail::InFlight& stage =
      in_flight_[static_cast<std::size_t>(wiring_.local_index(action.stage()))];
  if (action.type() == ActionType::kForward) {
    ++stage.microbatches;
    stage.kept = std::max(stage.kept, device_->memory().allocated - allocated_);
  } else if (action.type() != ActionType::kBackwardInput) {
    --stage.microbatches;
  }
}

bool Executor::is_skipped(Action action) const {
  return !plan_.options->reduce_grads &&
         (action.type() == ActionType::kReduceGrad || action.type() == ActionType::kWaitReduceGrad);
}

void Executor::run_built_in(Action action) {
  if (is_skipped(action)) return;
  switch (action.type()) {
    case ActionType::kForward:
      return finish_forward(action, stage(action).forward(action.microbatch(), take_inputs(action),
                                                          forward_options(action)));
    case ActionType::kBackward:
      return router_.put_input_grads(
          action, stage(action).backward(action.microbatch(), take_output_grads(action),
                                         router_.weight(action.microbatch())));
    case ActionType::kBackwardInput:
      return router_.put_input_grads(
          action, stage(action).backward_input(action.microbatch(), take_output_grads(action),
                                               router_.weight(action.microbatch())));
    case ActionType::kBackwardWeight:
      return stage(action).backward_weight(action.microbatch());
    case ActionType::kSendForward:
    case ActionType::kSendBackward:
      return router_.send(action);
    case ActionType::kRecvForward:
    case ActionType::kRecvBackward:
      return router_.post_receives(action);
    case ActionType::kWaitSendForward:
    case ActionType::kWaitSendBackward:
      return router_.wait_for_sends(action);
    case ActionType::kUnshard:
      gathers_.unshard(action.stage());
      if (const auto& hook = stage(action).options().on_unshard) hook();
      return;
    case ActionType::kReshard:
      if (const auto& hook = stage(action).options().on_reshard) hook();
      is_exchanging_ = true;
      gathers_.reshard(action.stage(), Deadline::after(options_.timeout));
      is_exchanging_ = false;
      return;
    case ActionType::kReduceGrad:
      if (const auto& hook = stage(action).options().on_reduce_grad) hook();
      return reducer_->reduce(action.stage(), plan_.step);
    case ActionType::kWaitReduceGrad:
      wait_reduced(action.stage());
      if (const auto& hook = stage(action).options().on_wait_reduce_grad) hook();
      return;
    case ActionType::kOverlap:
    case ActionType::kIdle:
      return;
  }
}

void Executor::run_measured(Action action, std::size_t offset) {
  MemoryMeter& meter = *plan_.meter;
  const int account = transport_.rank().value();
  peak_memory_ = std::max(peak_memory_, meter.peak(account));
  const int64_t before = meter.current(account);
  meter.reset_peak(account);
  run_built_in(action);
  ActionMemory& memory =
      memory_[static_cast<std::size_t>(wiring_.local_index(action.stage()))].of(action.type());
  memory.is_measured = true;
  const RankRecording::Held held{meter.peak(account), meter.current(account)};
  memory.change = held.after - before;
  memory.peak = held.most - before;
  recorder_.set_held(offset, held);
  peak_memory_ = std::max(peak_memory_, held.most);
}

ForwardOptions Executor::forward_options(Action action) const {
  if (options_.random == RandomSource::kProcess) return {.is_training = plan_.is_training};
  // The numbers of one pipeline with the microbatches of all replicas.
  const auto microbatch = static_cast<uint64_t>(
      place_.replica() * plan_.schedule->num_microbatches() + action.microbatch().value());
  const auto stage = static_cast<uint64_t>(action.stage().value());
  return {.is_training = plan_.is_training,
          .seed = mix_seed(plan_.seed, plan_.draw, microbatch, stage),
          .draw = mix_seed(plan_.seed, plan_.draw, microbatch, kWholeModel)};
}

// A weight that is an output, such as a tied weight that is sent, would lose its elements when the
// stage is resharded.
c10::IValue Executor::without_weights(const c10::IValue& output) const {
  if (shards_ == nullptr || shards_->kind() != ShardKind::kParameters) return output;
  return tree::map(output, [&](const c10::IValue& leaf) -> c10::IValue {
    if (!leaf.isTensor() || !shards_->is_part_of(leaf.toTensor())) return leaf;
    const at::Tensor& tensor = leaf.toTensor();
    return tensor.detach().clone().requires_grad_(tensor.requires_grad());
  });
}

void Executor::finish_forward(Action action, const c10::IValue& given) {
  const c10::IValue output = without_weights(given);
  note_added_loss(action);
  if (!stage(action).is_last()) return router_.put_outputs(action, output);
  compute_loss(action, output);
  keep_output(action, output);
}

void Executor::finish_forward(Action action, const c10::IValue& output, const at::Tensor& loss) {
  require<ArgumentError>(stage(action).is_last(),
                         "{}: a loss of stage {}, but only the last stage has one",
                         to_string(action), action.stage().value());
  require<ArgumentError>(!loss.defined() || loss.numel() == 1,
                         "{}: expected a loss with one element, got one of {}", to_string(action),
                         loss.defined() ? loss.numel() : 0);
  note_added_loss(action);
  if (loss.defined()) set_loss(action, loss);
  keep_output(action, output);
}

void Executor::note_added_loss(Action action) {
  if (!plan_.is_training) return;
  const at::Tensor added = stage(action).added_loss(action.microbatch());
  if (!added.defined()) return;
  at::Tensor& sum = added_losses_[action.microbatch().position()];
  sum = sum.defined() ? at::add(sum, added) : alone(added);
}

void Executor::keep_output(Action action, const c10::IValue& output) {
  if (plan_.options->outputs == OutputMode::kNone) return;
  outputs_[action.microbatch().position()] = without_history(output, false);
}

void Executor::compute_loss(Action action, const c10::IValue& output) {
  const auto m = action.microbatch().position();
  const bool has_target = m < plan_.batch->targets.size();
  if (!options_.loss || (!plan_.is_training && !has_target)) return;
  const c10::AutoGradMode grad_mode(plan_.is_training);
  set_loss(action, options_.loss(output, has_target ? plan_.batch->targets[m] : c10::IValue(),
                                 plan_.options->loss_arguments));
}

void Executor::set_loss(Action action, const at::Tensor& loss) {
  losses_[action.microbatch().position()] = alone(loss);
  if (plan_.is_training) stage(action).set_loss(action.microbatch(), loss);
}

// Failure -------------------------------------------------------------------------------------

void Executor::note_missing_grads() {
  had_no_grad_.clear();
  if (!plan_.is_training) return;
  for (const Stage& stage : stages_) {
    for (const auto& [name, parameter] : stage.parameters()) {
      if (!parameter.grad().defined()) had_no_grad_.push_back(parameter);
    }
  }
}

}  // namespace stagecraft
