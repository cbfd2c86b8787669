#pragma once

#include <vector>

#include <pybind11/pybind11.h>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft::python {

namespace py = pybind11;

/// A rank's list as Python numbers, an entry for each slot: Action::bits() of an action, a tuple of
/// them for an overlap, None for an idle slot. Python keeps one object for each number, so a list
/// costs a lookup an action.
py::list to_codes(const ActionList& list);
/// The inverse. ArgumentError for a number that is no action.
ActionList from_codes(const py::sequence& codes);

/// One list for each rank.
py::list to_codes(const std::vector<ActionList>& lists);
std::vector<ActionList> lists_from_codes(const py::sequence& lists);

}  // namespace stagecraft::python
