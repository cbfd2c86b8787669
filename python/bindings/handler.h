#pragma once

#include <torch/csrc/utils/pybind.h>

#include "stagecraft/runtime/action_context.h"

namespace stagecraft::python {

namespace py = pybind11;

/// A handler that calls a Python function with the action, instead of the runtime. An empty handler
/// for None. The function may use the action from any thread, until it returns.
ActionHandler handler_of(const py::object& function);

}  // namespace stagecraft::python
