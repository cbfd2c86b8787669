// A value that skips stages: stage 0 makes a gate that stage 3 applies, in a zero-bubble schedule.

#include <cstdio>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "stagecraft/stagecraft.h"

using namespace stagecraft;

int main() {
  torch::manual_seed(0);
  std::vector<torch::nn::Linear> layers;
  for (int i = 0; i < 4; ++i) layers.emplace_back(16, 16);

  auto parameters_of = [](const torch::nn::Linear& layer) {
    return NamedTensors{{"weight", layer->weight}, {"bias", layer->bias}};
  };
  std::vector<Stage> stages;
  // Two outputs: output 0 is passed along the chain, output 1 is the gate.
  stages.emplace_back(StageId(0), 4,
                      stage_body(
                          [layer = layers[0]](const at::Tensor& x) mutable {
                            const at::Tensor h = layer(x);
                            return std::make_tuple(torch::relu(h), torch::sigmoid(h));
                          },
                          parameters_of(layers[0])));
  for (int i = 1; i < 3; ++i) {
    stages.emplace_back(
        StageId(i), 4,
        stage_body(
            [layer = layers[i]](const at::Tensor& x) mutable { return torch::relu(layer(x)); },
            parameters_of(layers[i])));
  }
  stages.emplace_back(
      StageId(3), 4,
      stage_body([layer = layers[3]](const at::Tensor& x,
                                     const at::Tensor& gate) mutable { return layer(x) * gate; },
                 parameters_of(layers[3])));

  Ports ports(4);
  ports.connect({StageId(0), 1}, {StageId(3), 1});  // output 1 of stage 0, argument 1 of stage 3

  Pipeline pipeline(std::move(stages),
                    {.schedule = "ZBVZeroBubble",
                     .ranks = 2,
                     .loss = [](const at::Tensor& y,
                                const at::Tensor& target) { return torch::mse_loss(y, target); },
                     .ports = ports});
  const at::Tensor x = torch::randn({12, 16});
  const at::Tensor target = torch::randn({12, 16});
  const StepResult result = pipeline.step({x}, {}, target, {.microbatches = 4});

  // The same computation without a pipeline, for comparison.
  const at::Tensor with_pipeline = layers[0]->weight.grad().clone();
  for (auto& layer : layers) layer->zero_grad();
  for (int m = 0; m < 4; ++m) {
    const at::Tensor h = layers[0](x.narrow(0, 3 * m, 3));
    at::Tensor y = layers[2](torch::relu(layers[1](torch::relu(h)))).relu();
    y = layers[3](y) * torch::sigmoid(h);
    (torch::mse_loss(y, target.narrow(0, 3 * m, 3)) * 0.25).backward();
  }
  std::printf(
      "loss %.4f, gradients %s\n", result.loss().item<double>(),
      torch::equal(with_pipeline, layers[0]->weight.grad()) ? "equal bit for bit" : "DIFFER");
}
