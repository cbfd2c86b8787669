#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// The types of actions. The comment is the word in a schedule's text.
enum class ActionType : uint8_t {
  kForward,           ///< F
  kBackwardInput,     ///< I            gradients of the stage's inputs
  kBackwardWeight,    ///< W            gradients of its parameters, after I
  kBackward,          ///< B            both at once
  kSendForward,       ///< SEND_F       outputs to every other rank that reads them
  kRecvForward,       ///< RECV_F       posts the receive of all inputs that come from other ranks
  kSendBackward,      ///< SEND_B       gradients of inputs that came from other ranks
  kRecvBackward,      ///< RECV_B       posts the receive of gradients from other ranks
  kWaitSendForward,   ///< WAIT_SEND_F  waits until the SEND_F is complete
  kWaitSendBackward,  ///< WAIT_SEND_B  waits until the SEND_B is complete
  kUnshard,           ///< UNSHARD      gathers the parameters of a stage
  kReshard,           ///< RESHARD      releases them
  kReduceGrad,        ///< REDUCE_GRAD  reduces a stage's gradients over replicas
  kWaitReduceGrad,    ///< WAIT_REDUCE_GRAD  waits until that reduction is complete
  kOverlap,           ///< OVERLAP_F_B  the actions that follow run at the same time
  kIdle,              ///< (empty)      nothing, for one time step
};

/// "F", "SEND_B", ...; empty for kIdle.
std::string_view to_string(ActionType type);
std::optional<ActionType> find_action_type(std::string_view word);

/// F, I, W and B.
constexpr bool is_compute(ActionType type) {
  return type <= ActionType::kBackward;
}
/// SEND_F, RECV_F, SEND_B and RECV_B.
constexpr bool is_transfer(ActionType type) {
  return type >= ActionType::kSendForward && type <= ActionType::kRecvBackward;
}
/// WAIT_SEND_F and WAIT_SEND_B.
constexpr bool is_send_wait(ActionType type) {
  return type == ActionType::kWaitSendForward || type == ActionType::kWaitSendBackward;
}
/// WAIT_SEND_F, WAIT_SEND_B and WAIT_REDUCE_GRAD.
constexpr bool is_wait(ActionType type) {
  return is_send_wait(type) || type == ActionType::kWaitReduceGrad;
}
/// Compute, transfers and waits for sends, which belong to one microbatch.
constexpr bool has_microbatch(ActionType type) {
  return type <= ActionType::kWaitSendBackward;
}
/// The number of types that have a microbatch: the first of ActionType.
constexpr std::size_t kMicrobatchTypes =
    static_cast<std::size_t>(ActionType::kWaitSendBackward) + 1;
/// The SEND of a wait for a send, and the wait of a SEND.
constexpr ActionType send_of(ActionType wait) {
  return wait == ActionType::kWaitSendForward ? ActionType::kSendForward
                                              : ActionType::kSendBackward;
}
constexpr ActionType wait_of(ActionType send) {
  return send == ActionType::kSendForward ? ActionType::kWaitSendForward
                                          : ActionType::kWaitSendBackward;
}
/// I and B, which make the gradients of a stage's inputs.
constexpr bool makes_input_gradients(ActionType type) {
  return type == ActionType::kBackwardInput || type == ActionType::kBackward;
}
/// W and B, which end a microbatch on a stage.
constexpr bool makes_weight_gradients(ActionType type) {
  return type == ActionType::kBackwardWeight || type == ActionType::kBackward;
}

/// One entry of a rank's list: a stage, what it does and for which microbatch. Eight bytes, a
/// value.
///
///   Action a(StageId(2), ActionType::kForward, MicrobatchId(0));   // prints as 2F0
///
/// An overlap is an action of its own, `Action::overlap(n)`, and the n actions after it in the list
/// are its parts; schedule/slot.h walks over them.
class Action {
 public:
  static constexpr int32_t kMaxStage = (1 << 20) - 1;
  static constexpr int32_t kMaxMicrobatch = INT32_MAX - 1;

  /// An idle slot.
  constexpr Action() : Action(0, ActionType::kIdle, -1) {}
  /// For compute, transfers and waits for sends. ArgumentError for any other type, a stage outside
  /// [0, kMaxStage] or a microbatch outside [0, kMaxMicrobatch].
  constexpr Action(StageId stage, ActionType type, MicrobatchId microbatch)
      : Action(stage.value(), type, microbatch.value()) {
    if (!has_microbatch(type) || !is_stage(stage) || microbatch.value() < 0 ||
        microbatch.value() > kMaxMicrobatch) {
      refuse(stage, type, microbatch.value());
    }
  }
  /// For UNSHARD, RESHARD, REDUCE_GRAD and WAIT_REDUCE_GRAD, which belong to a stage alone.
  /// ArgumentError as above, for the type and the stage.
  constexpr Action(StageId stage, ActionType type) : Action(stage.value(), type, -1) {
    if (type < ActionType::kUnshard || type > ActionType::kWaitReduceGrad || !is_stage(stage)) {
      refuse(stage, type, -1);
    }
  }
  static constexpr Action overlap(int32_t parts) { return {0, ActionType::kOverlap, parts}; }

  constexpr ActionType type() const { return static_cast<ActionType>(head_ & 0xFFU); }
  /// -1 for idle and for an overlap, which have none. An observer sees actions of every type.
  constexpr StageId stage() const {
    return StageId(is_idle() || is_overlap() ? -1 : static_cast<int32_t>(head_ >> 8U));
  }
  /// -1 unless has_microbatch(type()).
  constexpr MicrobatchId microbatch() const {
    return MicrobatchId(has_microbatch(type()) ? tail_ : -1);
  }
  /// The number of parts of an overlap, 0 for every other action.
  constexpr int32_t num_parts() const { return is_overlap() ? tail_ : 0; }

  constexpr bool is_idle() const { return type() == ActionType::kIdle; }
  constexpr bool is_overlap() const { return type() == ActionType::kOverlap; }

  /// The same stage and microbatch with a different type.
  constexpr Action with_type(ActionType type) const {
    return {static_cast<int32_t>(head_ >> 8U), type, tail_};
  }
  /// The whole action as one number.
  constexpr uint64_t bits() const {
    return (static_cast<uint64_t>(head_) << 32U) | static_cast<uint32_t>(tail_);
  }

  friend constexpr bool operator==(Action, Action) = default;
  friend constexpr auto operator<=>(Action a, Action b) { return a.bits() <=> b.bits(); }

 private:
  static constexpr bool is_stage(StageId stage) {
    return stage.value() >= 0 && stage.value() <= kMaxStage;
  }
  [[noreturn]] static void refuse(StageId stage, ActionType type, int32_t microbatch);

  constexpr Action(int32_t stage, ActionType type, int32_t tail)
      : head_((static_cast<uint32_t>(stage) << 8U) | static_cast<uint32_t>(type)), tail_(tail) {}

  uint32_t head_;  // stage in the upper 24 bits, type in the lower 8
  int32_t tail_;   // microbatch, number of parts, or -1
};
static_assert(sizeof(Action) == 8);

/// "2F0", "1UNSHARD"; empty for idle; "OVERLAP_F_B" for an overlap without its parts.
std::string to_string(Action action);
/// Appends the same text.
void append_text(std::string& text, Action action);
std::ostream& operator<<(std::ostream& out, Action action);

}  // namespace stagecraft

template <>
struct std::hash<stagecraft::Action> {
  std::size_t operator()(stagecraft::Action action) const noexcept {
    return std::hash<uint64_t>{}(action.bits() * 0x9E3779B97F4A7C15U);
  }
};
