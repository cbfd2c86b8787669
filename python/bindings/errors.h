#pragma once

#include <exception>
#include <functional>

#include <pybind11/pybind11.h>

namespace stagecraft::python {

namespace py = pybind11;

/// Translates the errors of this module's C++ code into those of stagecraft.errors, with their
/// attributes. Called once by each extension module.
void bind_errors(py::module_& module);

/// The Python exception for a C++ exception: an object of stagecraft.errors for ours, RuntimeError
/// otherwise. Takes no lock: REQUIRES the GIL.
py::object to_python_error(const std::exception_ptr& error);

/// Turns the cause of a StageError or PeerError into a Python exception, or returns a null object.
/// `_C` sets it, so that an exception of a user's module is the `__cause__` of the StageError.
using CauseFunction = std::function<py::object(const std::exception_ptr&)>;
void set_cause_function(CauseFunction function);

}  // namespace stagecraft::python
