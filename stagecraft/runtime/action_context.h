#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/base/index.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

class Executor;

/// The argument of a handler that replaces the built-in handling of an action. Valid during the
/// call.
///
/// The built-in handling of the four kinds of compute is
///
///   F   finish_forward(stage().forward(microbatch(), take_inputs(), forward_options()));
///   B   finish_backward(stage().backward(microbatch(), take_output_grads(), loss_weight()));
///   I   finish_backward(stage().backward_input(microbatch(), take_output_grads(), loss_weight()));
///   W   stage().backward_weight(microbatch());
///
/// `part` selects one of the parts of an overlap. ArgumentError if there is no such part, and for a
/// call that is not for the type of the part.
///
/// A handler may use the context on a thread of its own, one call at a time, until the handler
/// returns.
class ActionContext {
 public:
  /// The action in the list; for an overlap, the overlap itself.
  Action action() const { return action_; }
  /// The parts of an overlap, otherwise the action itself.
  std::span<const Action> parts() const { return parts_; }
  Rank rank() const;
  Stage& stage(std::size_t part = 0) const;
  /// For compute, as the next two.
  MicrobatchId microbatch(std::size_t part = 0) const;
  double loss_weight(std::size_t part = 0) const;
  ForwardOptions forward_options(std::size_t part = 0) const;

  /// The built-in handling of a part, or of all parts, one after the other.
  void run(std::size_t part);
  void run_all();

  /// For F. take_inputs waits for the inputs. finish_forward passes the result on and, on the last
  /// stage, computes the loss.
  Arguments take_inputs(std::size_t part = 0);
  void finish_forward(const c10::IValue& output, std::size_t part = 0);
  /// The same on the last stage, with a loss that the handler has computed. Undefined: no loss.
  /// ArgumentError on any other stage, or unless a loss has one element.
  void finish_forward(const c10::IValue& output, const at::Tensor& loss, std::size_t part);
  /// For B and I. take_output_grads waits for the gradients of the outputs. finish_backward passes
  /// the gradients of the inputs on.
  std::vector<c10::IValue> take_output_grads(std::size_t part = 0);
  void finish_backward(std::vector<c10::IValue> input_grads, std::size_t part = 0);

 private:
  friend class Executor;
  ActionContext(Executor& executor, Action action, std::span<const Action> parts,
                std::size_t parts_offset)
      : executor_(executor), action_(action), parts_(parts), parts_offset_(parts_offset) {}

  Action get_part(std::size_t part) const;
  /// A part that computes, for `call`.
  Action get_compute(std::size_t part, std::string_view call) const;
  Action get_forward(std::size_t part, std::string_view call) const;
  Action get_backward(std::size_t part, std::string_view call) const;

  Executor& executor_;
  Action action_;
  std::span<const Action> parts_;
  std::size_t parts_offset_;  // where the parts start in the rank's list
};

/// Called on the thread of the action's rank.
using ActionHandler = std::function<void(ActionContext& context)>;

/// When an observer is called.
enum class ActionPhase : uint8_t { kBegin, kEnd };
/// Called for every action, including the parts of overlaps, on the thread of its rank. An
/// exception fails the step.
using ActionObserver = std::function<void(Rank rank, Action action, ActionPhase phase)>;

/// The handlers and observers of a program.
class Callbacks {
 public:
  /// Replaces the handling of an action type: F, I, W, B, UNSHARD, RESHARD, REDUCE_GRAD,
  /// WAIT_REDUCE_GRAD or an overlap. Handlers of F, I, W and B also handle the parts of overlaps,
  /// unless overlaps have a handler. An empty handler restores the built-in one. ArgumentError for
  /// a transfer or a wait for one.
  void replace(ActionType type, ActionHandler handler);
  void observe(ActionObserver observer) { observers_.push_back(std::move(observer)); }

  /// Null if there is none.
  const ActionHandler* find_handler(ActionType type) const {
    const ActionHandler& handler = handlers_[static_cast<std::size_t>(type)];
    return handler ? &handler : nullptr;
  }
  std::span<const ActionObserver> observers() const { return observers_; }
  /// Whether there are neither handlers nor observers.
  bool empty() const;

 private:
  std::vector<ActionHandler> handlers_ =
      std::vector<ActionHandler>(static_cast<std::size_t>(ActionType::kIdle) + 1);
  std::vector<ActionObserver> observers_;
};

}  // namespace stagecraft
