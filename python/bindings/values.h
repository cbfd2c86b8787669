#pragma once

#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/utils/pybind.h>

#include "stagecraft/tree/arguments.h"
#include "stagecraft/tree/opaque.h"

namespace stagecraft::python {

namespace py = pybind11;

/// The Python object of a value, and the value of a Python object. Tensors, numbers, strings, None,
/// tuples, lists and dicts with string keys are values of the same kind; any other object is one
/// opaque leaf. Stages of the same process get the object itself. It cannot be sent to a different
/// process. REQUIRE the GIL.
py::object to_python(const c10::IValue& value);
c10::IValue to_value(py::handle object);

py::tuple to_python(const std::vector<c10::IValue>& values);
std::vector<c10::IValue> to_values(py::handle sequence);
Arguments to_arguments(const py::tuple& args, const py::dict& kwargs);

}  // namespace stagecraft::python
