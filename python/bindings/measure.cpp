#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include <torch/csrc/utils/pybind.h>

#include "python/bindings/python_call.h"
#include "python/bindings/values.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/runtime/measure_layers.h"

namespace stagecraft::python {
namespace {

std::string layers_text(std::vector<PlanLayer> layers, const char* unit) {
  LayerFile file;
  file.layers = std::move(layers);
  file.input_gradient = false;
  file.units = {unit, true};
  return to_layer_file(file);
}

// The costs of the layers as the text of a cost file, measured in steps on one microbatch.
std::string measure_graph(const Graph& graph, const std::vector<std::string>& names,
                          const py::tuple& args, const py::dict& kwargs, const py::object& target,
                          const py::object& loss, int32_t ranks, int32_t steps) {
  Split split;
  for (const std::string& name : names) split.points.emplace_back(name, SplitPoint::kBeginning);
  if (names.empty()) split.policy = [](const Graph&) { return SplitPositions(); };
  Microbatches batch;
  batch.inputs.push_back(to_arguments(args, kwargs));
  batch.targets.push_back(to_value(target));
  const Loss function = [held = hold(loss)](const c10::IValue& output, const c10::IValue& goal,
                                            const Kwargs&) -> c10::IValue {
    return with_gil([&]() -> c10::IValue {
      return to_value(handle_of(held)(to_python(output), to_python(goal)));
    });
  };
  const py::gil_scoped_release release;
  const Pipe pipe(graph, split, {.by_default = SharedParameter::kTransmit});
  MeasureOptions options;
  options.ranks = ranks;
  options.steps = steps;
  return layers_text(measure_layers(pipe, function, batch, names, options), "ms");
}

}  // namespace

void bind_measure(py::module_& module) {
  module.def("layer_names", &layer_names, py::arg("graph"), py::arg("most") = 64);
  module.def("measure_layers", &measure_graph);
  module.def("estimate_layers", [](const Graph& graph, const std::vector<std::string>& names) {
    return layers_text(estimate_layers(graph, names), "");
  });
}

}  // namespace stagecraft::python
