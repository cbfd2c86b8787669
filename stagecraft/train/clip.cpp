#include "stagecraft/train/clip.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include "stagecraft/base/check.h"

namespace stagecraft {

std::vector<at::Tensor> norms_of_grads(const std::vector<ModelState>& states) {
  std::vector<at::Tensor> norms;
  for (const ModelState& state : states) {
    at::Tensor& norm = norms.emplace_back();
    if (!state.is_trained() || !state.tensor().grad().defined()) continue;
    norm = at::linalg_vector_norm(state.tensor().grad().detach(), 2).to(at::kCPU);
  }
  return norms;
}

double norm_of(const std::vector<at::Tensor>& norms) {
  std::vector<at::Tensor> defined;
  for (const at::Tensor& norm : norms) {
    if (norm.defined()) defined.push_back(norm);
  }
  if (defined.empty()) return 0;
  return at::linalg_vector_norm(at::stack(defined), 2).item<double>();
}

double grad_norm(const std::vector<ModelState>& states) {
  return norm_of(norms_of_grads(states));
}

void clip_grads(const std::vector<ModelState>& states, double norm, double most) {
  require<ArgumentError>(most > 0, "expected a norm above 0 to clip at, got {}", most);
  const double factor = most / (norm + 1e-6);
  if (!(factor < 1)) return;
  for (const ModelState& state : states) {
    if (!state.is_trained()) continue;
    for (const at::Tensor& copy : state.copies) {
      if (copy.grad().defined()) copy.grad().detach().mul_(factor);
    }
  }
}

const ModelState* find_infinite_grad(const std::vector<ModelState>& states) {
  for (const ModelState& state : states) {
    const at::Tensor grad = state.is_trained() ? state.tensor().grad() : at::Tensor();
    if (grad.defined() && !at::isfinite(grad).all().item<bool>()) return &state;
  }
  return nullptr;
}

std::string describe_infinite_grad(const std::string& name) {
  return "the gradient of " + name +
         " has elements that are infinite or NaN: training has diverged; try a lower learning "
         "rate, a longer warm-up or clipping";
}

}  // namespace stagecraft
