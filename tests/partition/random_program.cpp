#include "tests/partition/random_program.h"

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

using at::Tensor;

constexpr int64_t kWidth = 8;

/// One run of the program: the same draws every time, so the same operators.
class Run {
 public:
  Run(uint64_t seed, const std::vector<Tensor>& weights, Tensor buffer, std::vector<Tensor> pool)
      : random_(seed), weights_(weights), buffer_(std::move(buffer)), pool_(std::move(pool)) {}

  c10::IValue run() {
    if (below(3) == 0) change_arguments();
    const int steps = 6 + below(14);
    for (int i = 0; i < steps; ++i) step();
    std::vector<c10::IValue> outputs;
    const int count = 1 + below(3);
    for (int i = 0; i < count; ++i) outputs.emplace_back(pick());
    outputs.emplace_back(pool_.back());
    return tree::tuple(std::move(outputs));
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  const Tensor& weight() {
    return weights_[static_cast<std::size_t>(below(static_cast<int>(weights_.size())))];
  }

  /// Mostly what was made lately.
  Tensor pick() {
    const auto size = static_cast<int>(pool_.size());
    const int back = below(2) == 0 ? below(std::min(size, 3)) : below(size);
    return pool_[static_cast<std::size_t>(size - 1 - back)];
  }

  void step() {
    const Tensor x = pick();
    switch (below(15)) {
      case 0:
      case 1:
        return add(x.mm(weight().t()).tanh());
      case 2:
        return add(at::addmm(weight().sum(1), x, weight()).sin());
      case 3:
        return add((x + pick()) * 0.5);
      case 4:
        return add(x * pick().sigmoid());
      case 5:
        return add(in_place(x));
      case 6: {
        const std::vector<Tensor> parts = x.split({1, 4, 3}, 1);
        return add(at::cat({parts[2], parts[0], parts[1]}, 1));
      }
      case 7: {
        const std::vector<Tensor> halves = x.chunk(2, 1);
        return add(at::stack({halves[1], halves[0]}, 1).flatten(1));
      }
      case 8:
        return add(x.reshape({x.size(0) * 2, kWidth / 2}).softmax(1).view({x.size(0), kWidth}));
      case 9:
        return add(x - x.mean(0, true) + x.sum(1, true) / x.size(0));
      case 10: {
        const c10::NoGradGuard no_grad;
        return add(x.abs() + pick());
      }
      case 11:
        return add(x.detach() * torch::arange(x.size(0), at::kFloat).view({-1, 1}).cos() + pick());
      case 12:
        return add(at::dropout(x, 0.3, true));
      case 13:
        return add(with_buffer(x));
      default: {
        const auto [values, indices] = x.topk(kWidth, 1);
        return add(values + x.gather(1, indices.flip(1)));
      }
    }
  }

  // Changes a fresh tensor through views, with other operators in between.
  Tensor in_place(const Tensor& x) {
    Tensor y = x.clone();
    const Tensor left = y.narrow(1, below(4), 3);
    if (below(2) == 0) left.mul_(2);
    if (below(2) == 0) add((pick() + weight()[0]).cos());
    const Tensor flat = y.view({-1});
    if (below(2) == 0) flat.add_(0.25);
    if (below(2) == 0) left.t().sub_(1);
    if (below(3) == 0) y.select(1, 0).fill_(0.5);
    return below(2) == 0 ? y : y.add_(weight()[1]);
  }

  // What autograd does not need again may be changed.
  void change_arguments() {
    pool_[0].mul_(1.5);
    if (below(2) == 0) pool_[1].narrow(1, below(4), 3).add_(0.75);
    if (below(2) == 0) add(pool_[1].view({-1, kWidth / 2}).sub_(0.25).view({-1, kWidth}));
  }

  Tensor with_buffer(const Tensor& x) {
    if (!buffer_.defined()) return x - 1;
    {
      const c10::NoGradGuard no_grad;
      buffer_.mul_(0.75).add_(x.mean(0), 0.25);
    }
    return x - buffer_;
  }

  void add(Tensor value) { pool_.push_back(std::move(value)); }

  std::mt19937_64 random_;
  const std::vector<Tensor>& weights_;
  Tensor buffer_;
  std::vector<Tensor> pool_;
};

}  // namespace

StageBody random_program(uint64_t seed, const RandomProgramOptions& options) {
  auto weights = std::make_shared<std::vector<Tensor>>();
  StageBody body;
  const uint64_t count = 1 + seed % 3;
  for (uint64_t i = 0; i < count; ++i) {
    const Tensor values =
        torch::arange(kWidth * kWidth, at::kFloat) * (1.0 + static_cast<double>(i));
    weights->push_back((values.sin() * 0.3).view({kWidth, kWidth}).requires_grad_());
    body.parameters.emplace_back("w" + std::to_string(i), weights->back());
  }
  Tensor buffer;
  if (options.has_buffer) {
    buffer = torch::zeros({kWidth});
    body.buffers.emplace_back("mean", buffer);
  }
  body.forward = [seed, weights, buffer](const Args& args, const Kwargs&) {
    return Run(seed, *weights, buffer, {args[0].toTensor(), args[1].toTensor()}).run();
  };
  return body;
}

StageBody in_one_tensor(const StageBody& program) {
  StageBody body = program;
  body.forward = [program](const Args& args, const Kwargs& kwargs) -> c10::IValue {
    const c10::IValue tuple = program.forward(args, kwargs);
    std::vector<Tensor> outputs;
    for (const c10::IValue& output : tuple.toTupleRef().elements()) {
      outputs.push_back(output.toTensor());
    }
    return at::cat(outputs, 1);
  };
  return body;
}

Arguments random_program_inputs(int64_t rows) {
  const Tensor x = torch::arange(rows * kWidth, at::kFloat).view({rows, kWidth});
  return {{(x * 0.7).sin(), (x * 1.3).cos()}, {}};
}

}  // namespace stagecraft
