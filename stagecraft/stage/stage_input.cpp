#include "stagecraft/stage/stage_input.h"

#include <memory>
#include <type_traits>
#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "stagecraft/base/assert.h"

namespace stagecraft {

namespace {

// Keeps the gradient that arrives. It is the end of the graph.
class InputNode : public GradNode {
 public:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    grad = std::move(grads[0]);
    return {};
  }
  std::string name() const override { return "StageInput"; }

  at::Tensor grad;
};

template <typename Ptr>
Ptr make_node() {
  if constexpr (std::is_same_v<Ptr, std::shared_ptr<GradNode>>) {
    return std::make_shared<InputNode>();
  } else {
    return c10::make_intrusive<InputNode>();
  }
}

// The same as detach(), but without the dispatcher, because it is done for every input of every
// microbatch.
at::Tensor detached(const at::Tensor& source) {
  return at::Tensor(source.unsafeGetTensorImpl()->shallow_copy_and_detach(
      /*version_counter=*/torch::autograd::impl::version_counter(source),
      /*allow_tensor_metadata_change=*/false));
}

}  // namespace

GradEdge grad_edge_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.requires_grad()) return {};
  return torch::autograd::impl::gradient_edge(tensor);
}

StageInput::StageInput(const at::Tensor& source) : tensor_(detached(source)) {
  SC_ASSERT(source.is_floating_point() || source.is_complex());
  GradNodePtr node = make_node<GradNodePtr>();
  // The autograd engine checks shape, dtype and device of a gradient by this.
  const auto input = node->add_input_metadata(tensor_);
  edge_ = GradEdge(std::move(node), static_cast<uint32_t>(input));
  torch::autograd::impl::set_gradient_edge(tensor_, edge_);
}

at::Tensor StageInput::take_grad() const {
  return std::move(static_cast<InputNode&>(*edge_.function).grad);
}

void StageInput::keep_grad(at::Tensor grad) const {
  static_cast<InputNode&>(*edge_.function).grad = std::move(grad);
}

}  // namespace stagecraft
