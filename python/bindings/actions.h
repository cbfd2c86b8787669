#pragma once

#include <vector>

#include <pybind11/pybind11.h>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft::python {

namespace py = pybind11;

/// Sets the Python class of an action (a named tuple: stage, type, microbatch, parts), and the
/// objects of its types in the order of ActionType. kOverlap is the last. Called once, at import.
void set_action_class(const py::object& action, const py::tuple& types);

/// Lists as Python lists with an entry for each slot: an action, or None for an idle slot. There is
/// one object for each action, made when it first occurs.
py::list to_python(const std::vector<ActionList>& lists);

/// Lists from Python numbers: Action::bits() of an action, a tuple of them for an overlap, None for
/// an idle slot. ArgumentError for a number that is not an action.
std::vector<ActionList> lists_from_codes(const py::sequence& lists);

}  // namespace stagecraft::python
