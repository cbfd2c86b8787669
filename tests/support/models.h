#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <ATen/core/ivalue.h>

#include "stagecraft/tree/arguments.h"
#include "tests/support/test_model.h"

namespace torch::nn {
class Module;
}

/// The models that PyTorch tests its pipelines with, made anew for libtorch: whole, as modules, and
/// in stages. All take and give tensors of [rows, width]; `seed` alone decides the parameters.
namespace stagecraft::models {

struct WholeModel {
  TestModel stages;                           ///< its loss is the mean squared error
  std::shared_ptr<torch::nn::Module> module;  ///< owns the parameters that the stages share
  /// The uncut model, with autograd's own gradients.
  std::function<c10::IValue(const Args& args, const Kwargs& kwargs)> forward;
};

/// A parameter that two stages use, sent from the first to the second, and a skip connection from
/// stage 0 to stage 2. 1 to 8 stages.
WholeModel example_code(int64_t width, int32_t stages, uint64_t seed = 0);

/// Takes "y", which is added in stage 0, by name; it may be left out. Two stages.
WholeModel model_with_kwargs(int64_t width, uint64_t seed = 0);

/// Two stages that hold one parameter under two names: both add to its gradient.
WholeModel model_with_param_alias(int64_t width, uint64_t seed = 0);

/// Linear, relu, linear. One stage.
WholeModel mlp(int64_t width, uint64_t seed = 0);

/// A chain of MLPs, one each stage.
WholeModel multi_mlp(int64_t width, int32_t stages, uint64_t seed = 0);

/// The same; "bias" by name, which may be left out, has its mean added in stage 0.
WholeModel multi_mlp_kwargs(int64_t width, int32_t stages, uint64_t seed = 0);

/// The same as multi_mlp, with weight gradients of its own making (StageOptions::weight_work). Of
/// each stage's parameters, all come from there.
WholeModel multi_mlp_with_dw(int64_t width, int32_t stages, uint64_t seed = 0);

}  // namespace stagecraft::models
