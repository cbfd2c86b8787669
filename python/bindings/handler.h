#pragma once

#include <torch/csrc/utils/pybind.h>

#include "stagecraft/runtime/action_context.h"

namespace stagecraft::python {

namespace py = pybind11;

/// Calls a Python function with the action in the place of the runtime; none for None. The function
/// may use the action until it returns, from any thread.
ActionHandler handler_of(const py::object& function);

}  // namespace stagecraft::python
