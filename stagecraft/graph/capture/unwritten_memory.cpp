#include "stagecraft/graph/capture/unwritten_memory.h"

#include <fmt/format.h>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

void UnwrittenMemory::note_allocated(const Argument& result) {
  for_each_value(result, [&](ValueId value) { memory_.insert(values_.memory(value)); });
}

void UnwrittenMemory::note_written(const Argument& argument) {
  for_each_value(argument, [&](ValueId value) { memory_.erase(values_.memory(value)); });
}

void UnwrittenMemory::freeze(Argument& argument, const std::unordered_set<int32_t>& result_memory) {
  argument = map_values(argument, [&](ValueId value) -> Argument {
    const int32_t shared = values_.memory(value);
    if (!memory_.contains(shared) || result_memory.contains(shared)) return value;
    const auto constant = values_.freeze(value);
    if (!constant) {
      place_.fail(fmt::format("%{} is read but was never written", values_.name(value)));
    }
    return *constant;
  });
}

}  // namespace stagecraft
