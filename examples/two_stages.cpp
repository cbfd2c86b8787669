// Two stages written by hand, trained with 1F1B on two ranks that are threads, then evaluated.

#include <cstdio>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "stagecraft/stagecraft.h"

using namespace stagecraft;

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential bottom(torch::nn::Linear(8, 64), torch::nn::GELU(),
                               torch::nn::Linear(64, 64), torch::nn::GELU());
  torch::nn::Sequential top(torch::nn::Linear(64, 64), torch::nn::GELU(), torch::nn::Linear(64, 1));

  // A stage has its number, the number of stages, and anything callable.
  std::vector<Stage> stages;
  stages.emplace_back(StageId(0), 2, stage_body(bottom));
  stages.emplace_back(StageId(1), 2, stage_body(top));

  Pipeline pipeline(
      std::move(stages),
      {.schedule = "1F1B", .ranks = 2, .loss = [](const at::Tensor& y, const at::Tensor& target) {
         return torch::mse_loss(y, target);
       }});

  std::vector<at::Tensor> parameters = bottom->parameters();
  for (const at::Tensor& parameter : top->parameters()) parameters.push_back(parameter);
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(3e-3));

  const at::Tensor x = torch::randn({256, 8});
  const at::Tensor y = x.sin().sum(1, /*keepdim=*/true);
  for (int step = 0; step <= 60; ++step) {
    optimizer.zero_grad();
    const StepResult result = pipeline.step({x}, {}, y, {.microbatches = 8});
    optimizer.step();
    if (step % 20 == 0) std::printf("step %2d  loss %.4f\n", step, result.loss().item<double>());
  }

  // Other sizes are possible: 10 rows in 3 microbatches are 4, 3 and 3. eval changes no gradients.
  const at::Tensor some = torch::randn({10, 8});
  const StepResult answer = pipeline.eval({some}, {}, {}, {.microbatches = 3});
  std::printf("eval: %ld rows\n\n", static_cast<long>(answer.output.toTensor().size(0)));

  pipeline.step({x}, {}, y, {.microbatches = 8});
  std::printf("%s", to_text(pipeline.report()).c_str());
}
