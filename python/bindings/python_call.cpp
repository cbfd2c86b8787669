#include "python/bindings/python_call.h"

#include <torch/csrc/Exceptions.h>

#include "python/bindings/errors.h"

namespace stagecraft::python {
namespace {

bool is_python_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

void drop(PyObject* object) {
  // At the end of the process objects are not released, because the interpreter may be gone.
  if (object == nullptr || Py_IsInitialized() == 0 || is_python_ending()) return;
  const py::gil_scoped_acquire gil;
  Py_DECREF(object);
}

std::string text_of(const py::object& exception) {
  const std::string type = py::str(py::type::of(exception).attr("__name__"));
  std::string text;
  try {
    text = py::str(exception);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the text of an exception");
  }
  return text.empty() ? type : type + ": " + text;
}

void raise(const Held& exception) {
  PyObject* const value = exception.get();
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value)), value);
}

// The exception of a python_error, which torch's autograd engine throws if Python code failed
// inside a backward. It may still be set in this thread.
py::object exception_of(python_error& error) {
  error.persist();
  python_error copy(error);
  copy.restore();
  const py::error_already_set taken;
  return taken.value();
}

py::object cause_of(const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const PyFailure& error) {
    return py::reinterpret_borrow<py::object>(handle_of(error.exception()));
  } catch (const PyInterrupt& error) {
    return py::reinterpret_borrow<py::object>(handle_of(error.exception()));
  } catch (python_error& error) {
    return exception_of(error);
  } catch (...) {
    return to_python_error(cause);
  }
}

}  // namespace

Held hold(py::handle object) {
  return {object.inc_ref().ptr(), drop};
}

void throw_held(py::error_already_set& error) {
  py::object value = error.value();
  // The traceback keeps the frames alive, so the exception must refer to it.
  if (error.trace()) PyException_SetTraceback(value.ptr(), error.trace().ptr());
  const Held held = hold(value);
  // A PeerError that a handler raises stays a PeerError.
  if (error.matches(py::module_::import("stagecraft.errors").attr("PeerError"))) {
    throw PeerError(py::str(value), Rank(value.attr("peer").cast<int32_t>()));
  }
  if (error.matches(PyExc_KeyboardInterrupt)) throw PyInterrupt("interrupted", held);
  if (error.matches(PyExc_Exception)) throw PyFailure(text_of(value), held);
  throw PyInterrupt(text_of(value), held);
}

void check_signals() {
  with_gil([] {
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  });
}

bool is_main_thread() {
  const py::module_ threading = py::module_::import("threading");
  return threading.attr("current_thread")().is(threading.attr("main_thread")());
}

void bind_calls(py::module_&) {
  set_cause_function(cause_of);
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      std::rethrow_exception(error);
    } catch (const PyFailure& failure) {
      raise(failure.exception());
    } catch (const PyInterrupt& interrupt) {
      raise(interrupt.exception());
    }
  });
}

}  // namespace stagecraft::python
