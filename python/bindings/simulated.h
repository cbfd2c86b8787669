#pragma once

#include <pybind11/pybind11.h>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft::python {

namespace py = pybind11;

/// A schedule and its simulation, which drawings need together.
struct Simulated {
  Schedule schedule;
  Simulation result;
};

}  // namespace stagecraft::python
