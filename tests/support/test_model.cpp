#include "tests/support/test_model.h"

#include <cstddef>

namespace stagecraft {

std::vector<Stage> TestModel::make_stages() const {
  std::vector<Stage> stages;
  for (std::size_t s = 0; s < bodies.size(); ++s) {
    stages.emplace_back(StageId(static_cast<int32_t>(s)), num_stages(), bodies[s],
                        options.empty() ? StageOptions() : options[s]);
  }
  return stages;
}

std::vector<StageParameter> parameters_of(const std::vector<StageBody>& bodies) {
  std::vector<StageParameter> parameters;
  for (std::size_t s = 0; s < bodies.size(); ++s) {
    for (const auto& [name, tensor] : bodies[s].parameters) {
      parameters.push_back({StageId(static_cast<int32_t>(s)), name, tensor});
    }
  }
  return parameters;
}

std::vector<at::Tensor> take_grads(const std::vector<StageBody>& bodies) {
  std::vector<StageParameter> parameters = parameters_of(bodies);
  std::vector<at::Tensor> grads;
  for (const StageParameter& parameter : parameters) grads.push_back(parameter.tensor.grad());
  for (StageParameter& parameter : parameters) parameter.tensor.mutable_grad().reset();
  return grads;
}

}  // namespace stagecraft
