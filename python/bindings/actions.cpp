#include "python/bindings/actions.h"

#include <cstdint>
#include <string>

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

}  // namespace

py::list to_codes(const ActionList& list) {
  py::list codes;
  for (const Slot& slot : SlotRange(list)) {
    if (slot.is_idle()) {
      codes.append(py::none());
    } else if (slot.is_overlap()) {
      const auto parts = slot.parts();
      py::tuple tuple(parts.size());
      for (std::size_t i = 0; i < parts.size(); ++i) tuple[i] = py::int_(parts[i].bits());
      codes.append(tuple);
    } else {
      codes.append(py::int_(slot.parts().front().bits()));
    }
  }
  return codes;
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

py::list to_codes(const std::vector<ActionList>& lists) {
  py::list result;
  for (const ActionList& list : lists) result.append(to_codes(list));
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
