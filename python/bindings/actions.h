#pragma once

#include <vector>

#include <pybind11/pybind11.h>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft::python {

namespace py = pybind11;

/// Says which Python class an action is (a named tuple: stage, type, microbatch, parts), and which
/// objects its types are, in the order of ActionType; kOverlap is the last. Called once, at import.
void set_action_class(const py::object& action, const py::tuple& types);

/// Lists as Python lists, an entry for each slot: an action, None for an idle slot. There is one
/// object for each action, made when it first occurs.
py::list to_python(const std::vector<ActionList>& lists);

/// Lists from Python numbers: Action::bits() of an action, a tuple of them for an overlap, None for
/// an idle slot. ArgumentError for a number that is no action.
std::vector<ActionList> lists_from_codes(const py::sequence& lists);

}  // namespace stagecraft::python
