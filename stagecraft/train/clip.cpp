#include "stagecraft/train/clip.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include "stagecraft/base/check.h"

namespace stagecraft {

double grad_norm(const std::vector<ModelState>& states) {
  std::vector<at::Tensor> norms;
  for (const ModelState& state : states) {
    if (!state.is_trained() || !state.tensor().grad().defined()) continue;
    norms.push_back(at::linalg_vector_norm(state.tensor().grad().detach(), 2).to(at::kCPU));
  }
  if (norms.empty()) return 0;
  return at::linalg_vector_norm(at::stack(norms), 2).item<double>();
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

void check_finite_grads(const std::vector<ModelState>& states) {
  for (const ModelState& state : states) {
    const at::Tensor grad = state.is_trained() ? state.tensor().grad() : at::Tensor();
    if (!grad.defined() || at::isfinite(grad).all().item<bool>()) continue;
    throw Error("the gradient of " + state.name +
                " has elements that are infinite or no numbers: a lower learning rate, a longer "
                "warm-up or clipping helps where training has run away");
  }
}

}  // namespace stagecraft
