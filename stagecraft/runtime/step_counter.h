#pragma once

#include <algorithm>
#include <cstdint>

namespace stagecraft {

/// Numbers steps. Every attempt has its own id. Random numbers depend on the number of completed
/// training steps, so that evaluations and failed attempts do not change them.
class StepCounter {
 public:
  uint64_t next_id() { return ++id_; }
  uint64_t last_id() const { return id_; }
  /// Never decreases the id.
  void advance_to(uint64_t id) { id_ = std::max(id_, id); }
  /// The number from which the step's random numbers are derived. Evaluations have their own
  /// sequence.
  uint64_t draw(bool is_training) const {
    return is_training ? trained_ : kEvaluations + evaluated_;
  }
  void complete(bool is_training) { ++(is_training ? trained_ : evaluated_); }

  /// Completed training steps.
  uint64_t completed() const { return trained_; }
  void set_completed(uint64_t steps) { trained_ = steps; }

 private:
  static constexpr uint64_t kEvaluations = uint64_t{1} << 63U;
  uint64_t id_ = 0;
  uint64_t trained_ = 0;
  uint64_t evaluated_ = 0;
};

}  // namespace stagecraft
