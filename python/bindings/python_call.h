#pragma once

#include <memory>
#include <string>
#include <utility>

#include <torch/csrc/utils/pybind.h>

#include "stagecraft/base/error.h"
#include "stagecraft/base/wait_tick.h"

namespace stagecraft::python {

namespace py = pybind11;

/// A Python object that C++ objects own. Any thread may release it. The last release acquires the
/// GIL.
using Held = std::shared_ptr<PyObject>;
/// REQUIRES the GIL.
Held hold(py::handle object);
inline py::handle handle_of(const Held& held) {
  return held.get();
}

/// An exception that Python code raised, as a C++ exception that owns it. `what()` is
/// "ValueError: ..." or similar.
class PyFailure : public Error {
 public:
  PyFailure(const std::string& message, Held exception)
      : Error(message), exception_(std::move(exception)) {}
  const Held& exception() const { return exception_; }

 private:
  Held exception_;
};

/// The same for exceptions that are not derived from Exception: KeyboardInterrupt and SystemExit.
/// It ends the step, and is raised again unchanged.
class PyInterrupt : public InterruptedError {
 public:
  PyInterrupt(const std::string& message, Held exception)
      : InterruptedError(message), exception_(std::move(exception)) {}
  const Held& exception() const { return exception_; }

 private:
  Held exception_;
};

/// Throws PyFailure or PyInterrupt. REQUIRES the GIL.
[[noreturn]] void throw_held(py::error_already_set& error);

/// The result of `call`, which runs with the GIL. A Python exception leaves it as PyFailure or
/// PyInterrupt: py::error_already_set must not be copied or destroyed on threads without the GIL.
template <typename Call>
auto with_gil(const Call& call) {
  const py::gil_scoped_acquire gil;
  try {
    return call();
  } catch (py::error_already_set& error) {
    throw_held(error);
  }
}

/// Runs Python's signal handlers if a signal has arrived. KeyboardInterrupt and other exceptions of
/// handlers are thrown as PyInterrupt or PyFailure. For WaitTick.
void check_signals();
/// Whether this is the thread on which Python handles signals. REQUIRES the GIL.
bool is_main_thread();

/// Makes Python raise the original exception if a PyFailure or PyInterrupt leaves a binding. Makes
/// it the `__cause__` of a StageError.
void bind_calls(py::module_& module);

}  // namespace stagecraft::python
