#include <pybind11/pybind11.h>

namespace stagecraft::python {
namespace py = pybind11;

void bind_viz(py::module_&) {}

}  // namespace stagecraft::python
