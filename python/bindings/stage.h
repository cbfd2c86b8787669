#pragma once

#include <cstdint>

#include <torch/csrc/utils/pybind.h>

#include "stagecraft/stage/stage.h"

namespace stagecraft::python {

namespace py = pybind11;

/// A stage whose body is Python code. `call` is a small object (stagecraft.stage._StageCall) that
/// the stage owns:
///
///   call.forward(m, args, kwargs)   runs the module
///   call.tensors()                  ([(name, parameter)], [(name, buffer)])
///   call.device, call.recompute     as StageOptions have them
///   call.begin_backward(kind, m, last), call.end_backward(kind, m, last), or None
///   call.weight_work, call.unshard, call.reshard, call.reduce_grad   callables, or None
///
/// REQUIRES the GIL.
Stage make_stage(int32_t index, int32_t num_stages, const py::object& call);

void bind_stage(py::module_& module);

}  // namespace stagecraft::python
