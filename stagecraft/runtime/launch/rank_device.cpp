#include "stagecraft/runtime/launch/rank_device.h"

#include <algorithm>

#include <fmt/format.h>

#include "stagecraft/base/assert.h"
#include "stagecraft/base/device_error.h"
#include "stagecraft/base/error.h"
#include "stagecraft/base/log.h"
#include "stagecraft/runtime/values.h"

namespace stagecraft::detail {

namespace {

std::unique_ptr<DeviceProbe> probe_of(std::span<const Stage> stages) {
  if (stages.empty()) return nullptr;
  const c10::Device device = stages.front().device();
  const bool is_one =
      std::ranges::all_of(stages, [&](const Stage& stage) { return stage.device() == device; });
  return is_one ? find_device_probe(device) : nullptr;
}

}  // namespace

RankDevice::RankDevice(Rank rank, std::span<const Stage> stages)
    : rank_(rank), stages_(stages), probe_(probe_of(stages)) {
  if (!probe_) return;
  own_marks_ = probe_->make_marks();
  pending_ = PendingActions::make(rank, stages.front().device());
}

void RankDevice::start(const StepPlan& plan, std::size_t num_actions) {
  is_training_ = plan.is_training;
  is_captured_ = plan.is_captured;
  timeline_ = given_.has_marks() ? given_ : DeviceTimeline(own_marks_);
  timeline_.start(num_actions);
  is_read_ = !timeline_.has_marks();
  if (!probe_) return;
  pending_->start();
  in_flight_.clear();
  for (const Stage& stage : stages_) {
    in_flight_.push_back({.stage = stage.index(), .recomputes = stage.options().recompute});
  }
}

void RankDevice::check_usable() const {
  if (!failure_.empty()) throw DeviceError("the device failed in an earlier step: " + failure_);
}

void RankDevice::reset_peak() {
  if (probe_) probe_->reset_peak();
}

void RankDevice::begin(Action action, std::size_t offset) {
  if (pending_) pending_->launched(action);
  timeline_.begin(offset);
  if (probe_ && action.type() == ActionType::kForward) allocated_ = probe_->memory().allocated;
}

// REQUIRES a device, and a stage of the rank.
InFlight& RankDevice::in_flight(StageId stage) {
  const auto found = std::ranges::find(in_flight_, stage, &InFlight::stage);
  SC_ASSERT(found != in_flight_.end());
  return *found;
}

// If ranks share a device, their allocations count for each other.
void RankDevice::end(Action action, std::size_t offset) {
  timeline_.end(offset, is_compute(action.type()));
  if (!probe_ || !is_training_ || !is_compute(action.type())) return;
  InFlight& held = in_flight(action.stage());
  if (action.type() == ActionType::kForward) {
    ++held.microbatches;
    held.kept = std::max(held.kept, probe_->memory().allocated - allocated_);
  } else if (action.type() != ActionType::kBackwardInput) {
    --held.microbatches;
  }
}

void RankDevice::note_inputs(StageId stage, const Arguments& inputs) {
  if (probe_) in_flight(stage).inputs = bytes_of(inputs.args);
}

void RankDevice::note_complete() {
  if (pending_ && !is_captured_) pending_->complete(timeline_.num_complete());
}

std::exception_ptr RankDevice::explain(const std::exception_ptr& cause) {
  if (!probe_ || is_captured_ || !failure_.empty()) return cause;
  if (auto error = explain_out_of_memory(cause, probe_.get(), in_flight_)) {
    is_out_of_memory_ = true;
    return error;
  }
  if (auto error = explain_device_error(cause, *probe_, stages_.front().device())) {
    failure_ = stagecraft::describe(error);
    return error;
  }
  return cause;
}

// The memory that the failed step has left in the cache may be in blocks that are too small.
void RankDevice::abandon() {
  if (std::exchange(is_out_of_memory_, false)) probe_->release_unused();
}

void RankDevice::set_replayed(const DeviceTimeline& timeline) {
  timeline_ = timeline;
  is_read_ = false;
}

void RankDevice::read_into(Recorder& recorder) {
  if (std::exchange(is_read_, true)) return;
  try {
    recorder.set_device(timeline_.read(recorder.zero()));
    if (!probe_) return;
    const DeviceProbe::Memory memory = probe_->memory();
    recorder.set_device_memory({memory.allocated, memory.peak_allocated, memory.reserved});
  } catch (const std::exception&) {
    log(LogLevel::kWarning,
        fmt::format("rank {}: the device has no times of the step: {}", rank_.value(),
                    stagecraft::describe(std::current_exception())));
  }
}

}  // namespace stagecraft::detail
