#include <torch/csrc/utils/pybind.h>

#include "python/bindings/errors.h"
#include "stagecraft/base/version.h"

// The module stagecraft._C: the engine. One function for each subject, in the file of its name.
namespace stagecraft::python {}  // namespace stagecraft::python

PYBIND11_MODULE(_C, module) {
  using namespace stagecraft::python;
  module.doc() = "The engine of Stagecraft; stagecraft's modules are its face.";
  bind_errors(module);
}
