#include <pybind11/pybind11.h>

#include "python/bindings/errors.h"

// The module stagecraft._schedule: schedules, simulation, plans and drawings, without torch. One
// function for each subject, in the file of its name.
namespace stagecraft::python {
void bind_schedule(py::module_& module);
void bind_sim(py::module_& module);
void bind_plan(py::module_& module);
void bind_viz(py::module_& module);
}  // namespace stagecraft::python

PYBIND11_MODULE(_schedule, module) {
  using namespace stagecraft::python;
  module.doc() = "Schedules as values, their simulation, plans and drawings; needs no torch.";
  bind_errors(module);
  bind_schedule(module);
  bind_sim(module);
  bind_plan(module);
  bind_viz(module);
}
