#include <torch/csrc/utils/pybind.h>

#include "python/bindings/errors.h"
#include "stagecraft/base/version.h"

// The module stagecraft._C, which runs pipelines. One function for each subject, in the file of its name.
namespace stagecraft::python {

void bind_calls(py::module_& module);
void bind_backward(py::module_& module);
void bind_stage(py::module_& module);
void bind_transport(py::module_& module);
void bind_handler(py::module_& module);
void bind_runner(py::module_& module);
void bind_pipe(py::module_& module);
void bind_measure(py::module_& module);

}  // namespace stagecraft::python

PYBIND11_MODULE(_C, module) {
  using namespace stagecraft::python;
  module.doc() = "The C++ engine of Stagecraft. Use it through the modules of stagecraft.";
  bind_errors(module);
  bind_calls(module);
  bind_backward(module);
  bind_stage(module);
  bind_transport(module);
  bind_handler(module);
  bind_runner(module);
  bind_pipe(module);
  bind_measure(module);
}
