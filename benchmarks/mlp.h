#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>

#include "stagecraft/tree/stage_body.h"

namespace stagecraft::bench {

/// Linear, ReLU, Linear, all of one width: the stage of PyTorch's own tests of pipelines. Copies
/// share their weights.
class Mlp {
 public:
  explicit Mlp(int64_t hidden) {
    for (const char* name : {"weight1", "bias1", "weight2", "bias2"}) {
      const bool is_weight = std::string(name).starts_with("weight");
      const auto sizes = is_weight ? std::vector<int64_t>{hidden, hidden} : std::vector{hidden};
      // Small enough that values neither grow nor vanish from stage to stage.
      at::Tensor tensor = at::randn(sizes).div_(std::sqrt(static_cast<double>(hidden)));
      parameters_.emplace_back(name, tensor.requires_grad_(true));
    }
  }

  at::Tensor operator()(const at::Tensor& x) const {
    const at::Tensor inner = at::relu(at::linear(x, parameters_[0].second, parameters_[1].second));
    return at::linear(inner, parameters_[2].second, parameters_[3].second);
  }

  const NamedTensors& parameters() const { return parameters_; }

 private:
  NamedTensors parameters_;
};

}  // namespace stagecraft::bench
