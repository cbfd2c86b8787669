#include "python/bindings/errors.h"

#include <string>
#include <utility>

#include <pybind11/stl.h>

#include "stagecraft/base/error.h"

namespace stagecraft::python {
namespace {

CauseFunction& cause_function() {
  static CauseFunction function;
  return function;
}

py::object error_class(const char* name) {
  return py::module_::import("stagecraft.errors").attr(name);
}

// Must be called before any other function of Python: until then, an exception of a failed hook may
// be set in this thread.
py::object python_cause(const std::exception_ptr& cause) {
  if (!cause || !cause_function()) return {};
  return cause_function()(cause);
}

void set_cause(const py::object& error, py::object cause) {
  if (cause) PyException_SetCause(error.ptr(), cause.release().ptr());
}

}  // namespace

void set_cause_function(CauseFunction function) {
  cause_function() = std::move(function);
}

py::object to_python_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const StageError& e) {
    py::object cause = python_cause(e.cause());
    const StageError::Place& place = e.place();
    py::object made = error_class("StageError")(e.what(), place.rank.value(), place.stage.value(),
                                                place.microbatch.value(), place.action);
    set_cause(made, std::move(cause));
    return made;
  } catch (const PeerError& e) {
    py::object cause = python_cause(e.cause());
    py::object made = error_class("PeerError")(e.what(), e.peer().value());
    set_cause(made, std::move(cause));
    return made;
  } catch (const ParseError& e) {
    return error_class("ParseError")(e.what(), e.line(), e.column());
  } catch (const ScheduleError& e) {
    return error_class("ScheduleError")(e.what(), e.actions());
  } catch (const ArgumentError& e) {
    return error_class("ArgumentError")(e.what());
  } catch (const MetadataError& e) {
    return error_class("MetadataError")(e.what());
  } catch (const FileError& e) {
    return error_class("FileError")(e.what());
  } catch (const TimeoutError& e) {
    return error_class("TimeoutError")(e.what());
  } catch (const Error& e) {
    return error_class("Error")(e.what());
  } catch (...) {
    return py::module_::import("builtins").attr("RuntimeError")(describe(error));
  }
}

void bind_errors(py::module_&) {
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      std::rethrow_exception(error);
    } catch (const Error&) {
      const py::object made = to_python_error(std::current_exception());
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
    }
  });
}

}  // namespace stagecraft::python
