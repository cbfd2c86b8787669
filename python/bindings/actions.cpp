#include "python/bindings/actions.h"

#include <cstdint>
#include <string>
#include <unordered_map>

#include "stagecraft/base/error.h"

namespace stagecraft::python {
namespace {

Action action_from_code(uint64_t code) {
  const auto head = static_cast<uint32_t>(code >> 32U);
  const auto type = static_cast<ActionType>(head & 0xFFU);
  const StageId stage(static_cast<int32_t>(head >> 8U));
  const auto tail = static_cast<int32_t>(static_cast<uint32_t>(code));
  if (type >= ActionType::kOverlap) {
    throw ArgumentError("expected the code of an action, got " + std::to_string(code));
  }
  return has_microbatch(type) ? Action(stage, type, MicrobatchId(tail)) : Action(stage, type);
}

// The class of actions, and the actions that were made. They are never freed, because the
// interpreter may have ended before.
struct ActionObjects {
  PyTypeObject* action = nullptr;
  py::tuple types;
  std::unordered_map<uint64_t, py::object> made;
};

ActionObjects& objects() {
  static auto* objects = new ActionObjects;
  return *objects;
}

py::object make_action(const py::object& stage, ActionType type, const py::object& microbatch,
                       const py::object& parts) {
  const py::tuple fields =
      py::make_tuple(stage, objects().types[static_cast<std::size_t>(type)], microbatch, parts);
  const py::tuple arguments = py::make_tuple(fields);
  // tuple.__new__(class, fields), which takes less time than a call of the class.
  PyObject* action = PyTuple_Type.tp_new(objects().action, arguments.ptr(), nullptr);
  if (action == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(action);
}

py::object action_object(Action action) {
  py::object& found = objects().made[action.bits()];
  if (!found) {
    const ActionType type = action.type();
    found = make_action(py::int_(action.stage().value()), type,
                        has_microbatch(type) ? py::object(py::int_(action.microbatch().value()))
                                             : py::object(py::none()),
                        py::none());
  }
  return found;
}

py::object slot_object(const Slot& slot) {
  if (slot.is_idle()) return py::none();
  if (!slot.is_overlap()) return action_object(slot.parts().front());
  const auto parts = slot.parts();
  py::tuple made(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) made[i] = action_object(parts[i]);
  return make_action(py::int_(-1), ActionType::kOverlap, py::none(), made);
}

ActionList from_codes(const py::sequence& codes) {
  ActionList list;
  list.reserve(py::len(codes));
  for (const py::handle code : codes) {
    if (code.is_none()) {
      list.emplace_back();
    } else if (py::isinstance<py::tuple>(code)) {
      const auto parts = py::reinterpret_borrow<py::tuple>(code);
      list.push_back(Action::overlap(static_cast<int32_t>(parts.size())));
      for (const py::handle part : parts) list.push_back(action_from_code(part.cast<uint64_t>()));
    } else {
      list.push_back(action_from_code(code.cast<uint64_t>()));
    }
  }
  return list;
}

}  // namespace

void set_action_class(const py::object& action, const py::tuple& types) {
  objects().action = reinterpret_cast<PyTypeObject*>(action.inc_ref().ptr());
  objects().types = types;
}

py::list to_python(const std::vector<ActionList>& lists) {
  py::list result;
  for (const ActionList& list : lists) {
    py::list slots;
    for (const Slot& slot : SlotRange(list)) slots.append(slot_object(slot));
    result.append(slots);
  }
  return result;
}

std::vector<ActionList> lists_from_codes(const py::sequence& lists) {
  std::vector<ActionList> result;
  result.reserve(py::len(lists));
  for (const py::handle list : lists)
    result.push_back(from_codes(py::reinterpret_borrow<py::sequence>(list)));
  return result;
}

}  // namespace stagecraft::python
