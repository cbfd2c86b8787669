#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stagecraft/runtime/action_memory.h"
#include "stagecraft/runtime/record/recorder.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/stage/memory_meter.h"
#include "stagecraft/stage/stage.h"

namespace stagecraft {

/// Measures the tensor memory of a rank's actions in a step.
///
///   clear     begins a step that does not measure
///   start     begins to measure
///   measure   runs the work of an action
///   finish    after the last action
class StepMemory {
 public:
  /// `recorder` must outlive the object.
  explicit StepMemory(Recorder& recorder) : recorder_(recorder) {}

  void clear() {
    meter_ = nullptr;
    stages_.clear();
  }
  /// Counts on `account` of `meter`, which must outlive the step. `held_before`: bytes that the
  /// rank holds already.
  void start(MemoryMeter& meter, int account, std::span<const Stage> stages, int64_t held_before);
  /// Runs `work`, and measures it if `start` was called and the action has a microbatch.
  template <typename Work>
  void measure(Action action, std::size_t offset, Work&& work) {
    if (meter_ == nullptr || !has_microbatch(action.type())) return work();
    const int64_t before = begin();
    work();
    end(action, offset, before);
  }
  void finish() { recorder_.set_peak_memory(std::max(peak_, meter_->peak(account_))); }

  /// By stage of the rank. Empty if the step was not measured.
  std::span<const StageMemory> stages() const { return stages_; }

 private:
  int64_t begin();
  void end(Action action, std::size_t offset, int64_t before);

  Recorder& recorder_;
  MemoryMeter* meter_ = nullptr;  // null: the step is not measured
  int account_ = 0;
  int64_t peak_ = 0;
  std::vector<StageMemory> stages_;
};

}  // namespace stagecraft
