#include "tests/runtime/random_stage.h"

#include <algorithm>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/real.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>

#include "stagecraft/stage/random_scope.h"
#include "stagecraft/stage/stage_context.h"
#include "stagecraft/tree/tree.h"
#include "tests/runtime/random_functions.h"

namespace stagecraft {

namespace {

constexpr int64_t kWidth = kRandomWidth;

bool is_float(const c10::IValue& leaf) {
  return leaf.isTensor() && leaf.toTensor().defined() && leaf.toTensor().is_floating_point();
}

// The leaves of all arguments: positional, then by name.
std::vector<c10::IValue> leaves_of(const Args& args, const Kwargs& kwargs) {
  std::vector<c10::IValue> leaves;
  auto add = [&](const c10::IValue& value) {
    for (c10::IValue& leaf : tree::leaves(value)) leaves.push_back(std::move(leaf));
  };
  for (const c10::IValue& value : args) add(value);
  std::map<std::string, c10::IValue> by_name;
  for (const auto& [name, value] : kwargs) by_name.emplace(name, value);
  for (const auto& [name, value] : by_name) add(value);
  return leaves;
}

// The parameters of one step, and of the outputs.
struct Weights {
  at::Tensor matrix;  // [width, width]
  at::Tensor column;  // [width, 1]
  at::Tensor row;     // [1, width]
};

class RandomStage {
 public:
  explicit RandomStage(RandomStagePlan plan) : plan_(std::move(plan)) {
    Random random(plan_.seed);
    for (std::size_t i = 0; i <= plan_.steps.size(); ++i) {
      auto make = [&](std::vector<int64_t> sizes, const char* name) {
        const RandomScope scope(mix_seed(plan_.seed, i, 0, parameters_.size()));
        at::Tensor tensor = at::randn(sizes, plan_.dtype).mul_(0.4);
        tensor.requires_grad_(!plan_.is_frozen && !random.one_in(8));
        parameters_.emplace_back(name + std::to_string(i), tensor);
        return tensor;
      };
      weights_.push_back({make({kWidth, kWidth}, "matrix"), make({kWidth, 1}, "column"),
                          make({1, kWidth}, "row")});
    }
  }

  const NamedTensors& parameters() const { return parameters_; }

  c10::IValue operator()(const Args& args, const Kwargs& kwargs) const {
    std::vector<at::Tensor> pool = enter(leaves_of(args, kwargs));
    const std::size_t num_inputs = pool.size();
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) run(plan_.steps[i], weights_[i], pool);

    std::vector<c10::IValue> outputs;
    std::size_t next = pool.size();  // newest first; no tensor is given away twice
    for (const RandomOutput kind : plan_.outputs) {
      const bool is_left = next > 0;
      if (is_left) --next;
      const at::Tensor x = is_left ? pool[next] : pool.back() * 0.5;
      outputs.push_back(leave(kind, x, is_left && next < num_inputs));
    }
    if (plan_.returns_value) return outputs.at(0);
    return tree::tuple(std::move(outputs));
  }

 private:
  // What the stage computes with: float tensors in the order in which they come, then what the
  // other inputs make of the first of them.
  std::vector<at::Tensor> enter(const std::vector<c10::IValue>& leaves) const {
    std::vector<at::Tensor> pool;
    std::size_t number = 0;
    for (const c10::IValue& leaf : leaves) {
      if (!is_float(leaf)) continue;
      const RandomUse use = number < plan_.uses.size() ? plan_.uses[number] : RandomUse::kAlways;
      ++number;
      at::Tensor x = leaf.toTensor();
      if (use == RandomUse::kNever) continue;
      if (use == RandomUse::kOddMicrobatches && current_stage()->microbatch.value() % 2 == 0) {
        continue;
      }
      if (use == RandomUse::kInPlace) x.mul_(1.5).add_(0.25);
      if (use == RandomUse::kHook && x.requires_grad()) scale_and_count(x);
      pool.push_back(x);
    }
    if (pool.empty()) pool.push_back(at::tanh(weights_.back().row));
    for (const c10::IValue& leaf : leaves) {
      if (is_float(leaf)) continue;
      if (const at::Tensor factor = factor_of(leaf); factor.defined()) {
        pool.push_back(pool.front() * factor);
      }
    }
    return pool;
  }

  at::Tensor factor_of(const c10::IValue& leaf) const {
    auto number = [&](double value) { return at::full({1, 1}, value, plan_.dtype); };
    if (leaf.isInt()) return number(1 + 0.1 * static_cast<double>(leaf.toInt()));
    if (leaf.isBool()) return number(leaf.toBool() ? 1.25 : 0.75);
    if (leaf.isDouble()) return number(leaf.toDouble());
    if (leaf.isString()) return number(0.1 * static_cast<double>(leaf.toStringRef().size()));
    if (!leaf.isTensor() || !leaf.toTensor().defined()) return {};
    const at::Tensor& tensor = leaf.toTensor();
    if (tensor.is_complex()) return at::real(tensor) + at::imag(tensor) * 0.5;
    return tensor.to(plan_.dtype).mul(0.1).add(0.5).unsqueeze(1);  // integers and bools, [rows]
  }

  void scale_and_count(const at::Tensor& x) const {
    x.register_hook([calls = plan_.hook_calls](const at::Tensor& grad) {
      ++*calls;
      return grad * 0.5;
    });
  }

  void run(const RandomStagePlan::Step& step, const Weights& w,
           std::vector<at::Tensor>& pool) const {
    const at::Tensor a = pool[step.a % pool.size()];
    const at::Tensor b = pool[step.b % pool.size()];
    at::Tensor out = compute(step.op, a, b, w);
    if (out.defined()) pool.push_back(std::move(out));
  }

  at::Tensor compute(RandomOp op, const at::Tensor& a, const at::Tensor& b,
                     const Weights& w) const {
    switch (op) {
      case RandomOp::kLinear:
        return at::linear(a, w.matrix, w.column.squeeze(1));
      case RandomOp::kWeightTwice:
        return at::linear(at::tanh(at::linear(a, w.matrix)), w.matrix) + w.row;
      case RandomOp::kWeightNorm:
        return at::linear(a, w.matrix * (w.column / w.matrix.norm(2, 1, true)));
      case RandomOp::kLayerNorm:
        return at::layer_norm(a, {kWidth}, w.row.squeeze(0), w.column.squeeze(1));
      case RandomOp::kActivation:
        return at::gelu(a) + at::relu(b);
      case RandomOp::kAdd:
        return a + b;
      case RandomOp::kMultiply:
        return a * at::tanh(b);
      case RandomOp::kChunk: {
        const auto parts = a.chunk(2, 1);
        return at::cat({parts[1], parts[0] * 2}, 1);
      }
      case RandomOp::kUnbind: {
        const auto parts = a.unbind(1);
        return at::stack({parts[3], parts[0], parts[3], parts[1], parts[5], parts[0]}, 1);
      }
      case RandomOp::kSplit: {
        const auto parts = a.split_with_sizes({1, 2, 3}, 1);
        return at::cat({parts[2], parts[2] * 0.5}, 1);
      }
      case RandomOp::kTopk:
        return std::get<0>(a.topk(kWidth, 1)) * w.row;
      case RandomOp::kInPlace:
        return (a * 0.5 + b).mul_(w.row).relu_();
      case RandomOp::kInPlaceOnView: {
        at::Tensor t = a * 1.5;
        t.narrow(1, 1, 2).mul_(w.row.narrow(1, 0, 2));
        t.view_as(t).add_(0.1);
        return t;
      }
      case RandomOp::kCustom:
        return custom_scale(a) * 0.5;
      case RandomOp::kCustomWeight:
        return custom_weight(a, w.row);
      case RandomOp::kCustomOutputs: {
        const auto [same, square] = custom_outputs(at::tanh(a));
        return b.size(0) % 2 == 0 ? square : same;
      }
      case RandomOp::kCountingHook: {
        const at::Tensor t = a * 0.75;
        if (t.requires_grad()) {
          t.register_hook([calls = plan_.hook_calls](const at::Tensor&) { ++*calls; });
        }
        return t;
      }
      case RandomOp::kScalingHook: {
        const at::Tensor t = a * w.row;
        if (t.requires_grad()) scale_and_count(t);
        return t;
      }
      case RandomOp::kDropout:
        return at::dropout(a, 0.25, true);
      case RandomOp::kDetach:
        return a.detach() * b;
      case RandomOp::kParameterAlone:
        return at::tanh(w.row);
      case RandomOp::kAddLoss:
        add_loss((a * w.row).pow(2).mean() * 0.1);
        return {};
      case RandomOp::kUnusedParameter:
      case RandomOp::kLast:
        return {};
    }
    return {};
  }

  c10::IValue leave(RandomOutput kind, const at::Tensor& x, bool is_input) const {
    switch (kind) {
      case RandomOutput::kFresh:
        return x * 1.25;
      case RandomOutput::kTensor:
        return is_input ? x * 0.5 : x;
      case RandomOutput::kInput:
        return x;
      case RandomOutput::kView:
        return (x * 2).t().contiguous().t();
      case RandomOutput::kParameter:
        return weights_.back().row;
      case RandomOutput::kDetached:
        return x.detach().clone();
      case RandomOutput::kLong:
        return at::argmax(x, 1);
      case RandomOutput::kComplex:
        return at::complex(x, x * 0.5);
      case RandomOutput::kDict:
        return tree::dict({{"x", x * 0.5}, {"none", c10::IValue()}, {"n", int64_t{2}}});
      case RandomOutput::kTuple:
        return tree::tuple({at::argmax(x, 1), tree::tuple({x * 0.5, x.narrow(1, 0, kWidth) * 2})});
      case RandomOutput::kList:
        return tree::list({x * 2, x.detach().clone()});
      case RandomOutput::kInt:
        return int64_t{3};
      case RandomOutput::kBool:
        return true;
      case RandomOutput::kDouble:
        return 0.5;
      case RandomOutput::kString:
        return "eight...";
      case RandomOutput::kNone:
      case RandomOutput::kLast:
        return {};
    }
    return {};
  }

  RandomStagePlan plan_;
  std::vector<Weights> weights_;
  NamedTensors parameters_;
};

}  // namespace

StageBody make_random_stage(const RandomStagePlan& plan) {
  StageBody body;
  if (plan.outputs.empty() && plan.steps.empty()) {
    body.forward = [](const Args& args, const Kwargs& kwargs) {
      std::vector<c10::IValue> values = args;
      std::map<std::string, c10::IValue> by_name;
      for (const auto& [name, value] : kwargs) by_name.emplace(name, value);
      for (const auto& [name, value] : by_name) values.push_back(value);
      return tree::tuple(std::move(values));
    };
    return body;
  }
  auto stage = std::make_shared<const RandomStage>(plan);
  body.parameters = stage->parameters();
  body.forward = [stage](const Args& args, const Kwargs& kwargs) { return (*stage)(args, kwargs); };
  return body;
}

std::string to_string(RandomOp op) {
  static const std::vector<std::string> kNames = {"linear",
                                                  "weight twice",
                                                  "weight norm",
                                                  "layer norm",
                                                  "activation",
                                                  "add",
                                                  "multiply",
                                                  "chunk",
                                                  "unbind",
                                                  "split",
                                                  "topk",
                                                  "in place",
                                                  "in place on view",
                                                  "custom",
                                                  "custom weight",
                                                  "custom outputs",
                                                  "counting hook",
                                                  "scaling hook",
                                                  "dropout",
                                                  "detach",
                                                  "parameter alone",
                                                  "unused parameter",
                                                  "add_loss"};
  return kNames.at(static_cast<std::size_t>(op));
}

std::string to_string(RandomOutput output) {
  static const std::vector<std::string> kNames = {
      "fresh", "tensor", "input", "view", "parameter", "detached", "long",   "complex",
      "dict",  "tuple",  "list",  "int",  "bool",      "double",   "string", "none"};
  return kNames.at(static_cast<std::size_t>(output)) + " output";
}

std::string to_string(RandomUse use) {
  static const std::vector<std::string> kNames = {"used", "never used", "used for odd microbatches",
                                                  "changed in place", "hooked"};
  return kNames.at(static_cast<std::size_t>(use)) + " input";
}

}  // namespace stagecraft
