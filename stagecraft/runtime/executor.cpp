#include "stagecraft/runtime/executor.h"

#include <algorithm>
#include <exception>

#include "stagecraft/base/wait_tick.h"
#include "stagecraft/runtime/action_range.h"
#include "stagecraft/runtime/shared_casts.h"

namespace stagecraft {

Executor::Executor(Transport& transport, const ReplicaPlace& place, const Wiring& wiring,
                   std::span<Stage> stages, const Placement& placement,
                   const PipelineOptions& options, const Callbacks& callbacks,
                   ParameterShards* shards)
    : transport_(transport),
      place_(place),
      wiring_(wiring),
      stages_(stages),
      callbacks_(callbacks),
      announcer_(transport),
      progress_(std::make_shared<ProgressMark>()),
      device_(transport.rank(), stages),
      router_(transport, wiring, recorder_, *progress_, options),
      exchange_(transport, place, stages, placement, options, shards, recorder_, *progress_),
      actions_(place, wiring, stages, options, router_, exchange_, device_),
      memory_(recorder_) {}

void Executor::connect(Deadline deadline) {
  std::vector<Rank> peers = wiring_.peers();
  const std::vector<Rank> others = exchange_.peers();
  peers.insert(peers.end(), others.begin(), others.end());
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  transport_.connect(peers, deadline);
}

const RankRecording& Executor::recorded() {
  device_.read_into(recorder_);
  return recorder_.view();
}

void Executor::set_replayed(const RankRecording& capture, const detail::DeviceTimeline& timeline,
                            Recorder::Time zero) {
  recorder_.set_replayed(capture, zero);
  device_.set_replayed(timeline);
}

void Executor::publish_progress() {
  transport_.publish([progress = progress_] { return progress->read(); });
}

std::vector<double> Executor::weights() const {
  std::vector<double> weights;
  for (int32_t m = 0; m < plan_.schedule->num_microbatches(); ++m) {
    weights.push_back(router_.weight(MicrobatchId(m)));
  }
  return weights;
}

// The list ------------------------------------------------------------------------------------

// Runs a part of the step. A failure on this rank, or one that it is notified of, ends the rank's
// step.
template <typename Part>
void Executor::guarded(Part&& part) {
  try {
    part();
  } catch (...) {
    fail(std::current_exception());
  }
}

void Executor::run(const StepPlan& plan) {
  guarded([&] {
    start_list(plan);
    if (plan.meter != nullptr) {
      device_.reset_peak();
      const int account = transport_.rank().value();
      const MemoryMeter::Scope scope(*plan.meter, account);
      memory_.start(*plan.meter, account, stages_, exchange_.bytes_held());
      run_list();
      memory_.finish();
    } else if (exchange_.releases_weights()) {
      run_list();  // casts of weights would outlive the weights
    } else {
      // Casts are not shared if memory is measured: they would count for the first forward.
      const SharedCasts casts(stages_);
      run_list();
    }
  });
}

void Executor::start(const StepPlan& plan) {
  guarded([&] {
    start_list(plan);
    start_values();
  });
}

void Executor::run_slot_at(std::size_t offset) {
  guarded([&] { run_slot_of(offset); });
}

void Executor::send_ties() {
  if (plan_.is_training) guarded([&] { exchange_.send_ties(); });
}

void Executor::finish() {
  guarded([&] { finish_list(); });
}

void Executor::start_list(const StepPlan& plan) {
  plan_ = plan;
  actions_.start(plan);
  progress_->start_step(plan.step);
  recorder_.start(list().size(), plan.zero);
  device_.start(plan, list().size());
  memory_.clear();
}

void Executor::start_values() {
  device_.check_usable();
  router_.start(plan_.step, static_cast<std::size_t>(plan_.schedule->num_microbatches()),
                plan_.is_training, *plan_.batch, plan_.meter);
  for (Stage& stage : stages_) stage.begin_step();
  exchange_.start(plan_);
  if (!plan_.is_training) return;
  for (Stage& stage : stages_) {
    stage.expect_backwards(
        static_cast<std::size_t>(std::ranges::count_if(list(), [&](const Action action) {
          return (action.type() == ActionType::kBackward ||
                  action.type() == ActionType::kBackwardWeight) &&
                 action.stage() == stage.index();
        })));
  }
}

void Executor::run_list() {
  start_values();
  for (std::size_t offset = 0; offset < list().size();) offset += run_slot_of(offset);
  finish_list();
}

void Executor::finish_list() {
  router_.finish();
  exchange_.finish();
}

// A slot --------------------------------------------------------------------------------------

void Executor::enter_slot(std::size_t offset) {
  if (const auto reason = transport_.abort_reason()) {
    throw PeerError(reason->message, reason->rank, reason->cause);
  }
  WaitTick::call_if_due();
  slot_ = slot_at(offset);
}

// Returns the number of actions in the slot.
std::size_t Executor::run_slot_of(std::size_t offset) {
  enter_slot(offset);
  exchange_.poll();
  device_.note_complete();
  const Action action = slot_.front();
  if (!action.is_overlap()) {
    if (!action.is_idle()) run_action(action, offset);
    return 1;
  }
  const std::span<const Action> parts = slot_.subspan(1);
  const ActionRange range(slot_);
  begin(action, offset);
  if (const ActionHandler* handler = callbacks_.find_handler(ActionType::kOverlap)) {
    ActionContext context(*this, action, parts, offset + 1);
    (*handler)(context);
  } else {
    for (std::size_t i = 0; i < parts.size(); ++i) run_action(parts[i], offset + 1 + i);
  }
  end(action, offset);
  return 1 + parts.size();
}

void Executor::run_slot_as(std::size_t offset, const std::function<void()>& work) {
  guarded([&] {
    enter_slot(offset);
    device_.note_complete();
    begin(slot_.front(), offset);
    work();
    end(slot_.front(), offset);
    // The parts of an overlap are one launch.
    for (std::size_t part = 1; part < slot_.size(); ++part) {
      begin(slot_[part], offset + part);
      end(slot_[part], offset + part);
    }
  });
}

void Executor::run_action(Action action, std::size_t offset) {
  const ActionHandler* handler = callbacks_.find_handler(action.type());
  if (handler == nullptr || actions_.is_skipped(action)) return run_recorded(action, offset);
  const ActionRange range(std::span(&action, 1));
  begin(action, offset);
  ActionContext context(*this, action, std::span(&action, 1), offset);
  (*handler)(context);
  end(action, offset);
}

void Executor::run_recorded(Action action, std::size_t offset) {
  const ActionRange range(std::span(&action, 1));
  begin(action, offset);
  memory_.measure(action, offset, [&] { actions_.run(action); });
  end(action, offset);
}

void Executor::begin(Action action, std::size_t offset) {
  current_ = action;
  progress_->begin(action);
  router_.set_offset(offset);
  recorder_.begin(offset);
  device_.begin(action, offset);
  for (const ActionObserver& observer : callbacks_.observers()) {
    observer(transport_.rank(), action, ActionPhase::kBegin);
  }
  exchange_.wait_for_weights(action.is_overlap() ? slot_ : std::span(&action, 1), offset);
}

void Executor::end(Action action, std::size_t offset) {
  for (const ActionObserver& observer : callbacks_.observers()) {
    observer(transport_.rank(), action, ActionPhase::kEnd);
  }
  device_.end(action, offset);
  recorder_.end(offset);
  const bool is_part = slot_.front().is_overlap() && !action.is_overlap();
  current_ = is_part ? slot_.front() : Action();
  progress_->end(action, current_);
}

}  // namespace stagecraft
