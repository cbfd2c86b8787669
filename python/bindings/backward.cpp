#include "stagecraft/stage/backward.h"

#include <optional>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/utils/pybind.h>

namespace stagecraft::python {

namespace py = pybind11;

namespace {

using OptionalTensors = std::vector<std::optional<at::Tensor>>;

at::Tensor tensor_or_none(const std::optional<at::Tensor>& tensor) {
  return tensor.value_or(at::Tensor());
}

std::vector<GradRoot> roots_of(const std::vector<at::Tensor>& outputs,
                               const OptionalTensors& grads) {
  std::vector<GradRoot> roots;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    roots.push_back({grad_edge_of(outputs[i]), tensor_or_none(grads[i])});
  }
  return roots;
}

py::object object_or_none(const at::Tensor& tensor) {
  return tensor.defined() ? py::cast(tensor) : py::none();
}

// Runs I. Returns the gradients of the inputs, and for each border node (node, gradients,
// parameters, border).
py::tuple backward_input_of(const std::vector<at::Tensor>& outputs, const OptionalTensors& grads,
                            const std::vector<at::Tensor>& inputs) {
  std::vector<GradRoot> roots = roots_of(outputs, grads);
  std::vector<GradEdge> edges;
  for (const at::Tensor& input : inputs) edges.push_back(grad_edge_of(input));
  InputBackward result;
  {
    const py::gil_scoped_release release;
    result = stagecraft::backward_input(std::move(roots), edges);
  }
  py::list input_grads;
  for (const at::Tensor& grad : result.input_grads) input_grads.append(object_or_none(grad));
  py::list borders;
  for (BorderWork& border : result.borders) {
    py::tuple border_grads(border.grads.size());
    for (std::size_t i = 0; i < border.grads.size(); ++i) {
      border_grads[i] = object_or_none(border.grads[i]);
    }
    auto node = py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(border.node));
    py::list parameters = py::cast(std::exchange(border.parameters, {}));
    border.grads.clear();
    borders.append(py::make_tuple(node, border_grads, parameters, py::cast(std::move(border))));
  }
  return py::make_tuple(input_grads, borders);
}

// Runs W. `work` has (border, gradients by output of its node).
void backward_weight_of(const std::vector<std::pair<BorderWork*, OptionalTensors>>& work,
                        bool keep_graph) {
  std::vector<BorderWork> borders;
  for (const auto& [border, grads] : work) {
    BorderWork& each = borders.emplace_back(BorderWork{border->node, {}, {}});
    for (const auto& grad : grads) each.grads.push_back(tensor_or_none(grad));
  }
  const py::gil_scoped_release release;
  stagecraft::backward_weight(borders, keep_graph);
  borders.clear();
}

void backward_full_of(const std::vector<at::Tensor>& outputs, const OptionalTensors& grads) {
  std::vector<GradRoot> roots = roots_of(outputs, grads);
  const py::gil_scoped_release release;
  stagecraft::backward_full(std::move(roots));
}

}  // namespace

void bind_backward(py::module_& module) {
  py::class_<BorderWork>(module, "Border", py::release_gil_before_calling_cpp_dtor(),
                         "A node of the autograd graph that leads to inputs and to parameters.");
  module.def("backward_full", &backward_full_of);
  module.def("backward_input", &backward_input_of);
  module.def("backward_weight", &backward_weight_of);
}

}  // namespace stagecraft::python
