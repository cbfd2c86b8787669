#pragma once

#include <cstdint>
#include <unordered_set>

#include "stagecraft/graph/argument.h"
#include "stagecraft/graph/capture/trace_place.h"
#include "stagecraft/graph/capture/traced_values.h"

namespace stagecraft {

/// The memory that operators of a trace have allocated and to which no operator has written. If the
/// model reads it nevertheless, it has filled the memory by pointer.
class UnwrittenMemory {
 public:
  /// The arguments must outlive the object.
  UnwrittenMemory(TracedValues& values, const TracePlace& place) : values_(values), place_(place) {}

  /// Called for a result that an operator has allocated without elements.
  void note_allocated(const Argument& result);
  /// Called for an argument that an operator has changed in place.
  void note_written(const Argument& argument);

  /// Called for an argument whose elements are read. Values in unwritten memory are replaced by
  /// constants with the elements that they have now, except those in `result_memory`: an operator
  /// whose result shares memory with an argument, such as a view, reads no elements of that
  /// argument. CaptureError if the elements are gone.
  void freeze(Argument& argument, const std::unordered_set<int32_t>& result_memory);

 private:
  TracedValues& values_;
  const TracePlace& place_;
  std::unordered_set<int32_t> memory_;
};

}  // namespace stagecraft
