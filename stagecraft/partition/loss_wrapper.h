#pragma once

#include <functional>
#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "stagecraft/tree/arguments.h"
#include "stagecraft/tree/stage_body.h"

namespace stagecraft {

/// A model together with its loss, so that both are captured and split. Derive from it and compute
/// the loss in forward. The model's parameters are then named "module.<name>".
class LossWrapper {
 public:
  explicit LossWrapper(StageBody module) : module_(std::move(module)) {}
  virtual ~LossWrapper() = default;
  LossWrapper(const LossWrapper&) = delete;
  LossWrapper& operator=(const LossWrapper&) = delete;

  /// Returns the loss, or a tree that contains it.
  virtual c10::IValue forward(const Args& args, const Kwargs& kwargs) = 0;

  const StageBody& module() const { return module_; }

 private:
  StageBody module_;
};

/// loss(module(x), target) for the arguments (x, target).
class TrivialLossWrapper : public LossWrapper {
 public:
  using LossFn = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

  TrivialLossWrapper(StageBody module, LossFn loss)
      : LossWrapper(std::move(module)), loss_(std::move(loss)) {}

  /// ArgumentError unless there are two arguments and the module returns a tensor.
  c10::IValue forward(const Args& args, const Kwargs& kwargs) override;

 private:
  LossFn loss_;
};

/// The wrapper in the form that capture takes.
StageBody loss_body(std::shared_ptr<LossWrapper> wrapper);

}  // namespace stagecraft
