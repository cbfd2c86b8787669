#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// The number of the name under which a state is read. The last read has the last name, earlier
/// reads have the other names in order, and surplus reads have the last name but one.
inline std::size_t name_of_read(std::size_t read, std::size_t reads, std::size_t names) {
  if (names == 1 || read + 1 == reads) return read + 1 == reads && reads > 1 ? names - 1 : 0;
  return read < names - 1 ? read : names - 2;
}

/// Where the values of a graph are made and read, as numbers of nodes. Inputs and states are made
/// at -1. Outputs are read at the number of nodes.
class ValueUses {
 public:
  struct Span {
    int32_t made = -1;
    int32_t last = -1;  ///< the last read; `made` if the value is not read
    bool is_state = false;

    bool is_made_here() const { return made >= 0; }
  };
  /// Values that share memory.
  struct Memory {
    std::vector<ValueId> values;
    std::vector<int32_t> writes;  ///< nodes that change it, ascending
    int32_t first = INT32_MAX;    ///< the first and the last node that makes or reads one of them
    int32_t last = -1;
    bool has_state = false;
  };

  explicit ValueUses(const Graph& graph);

  Span of(ValueId value) const { return spans_[value]; }
  /// The nodes that read the value, ascending, then the number of nodes if it is an output.
  const std::vector<int32_t>& reads(ValueId value) const { return reads_[value]; }
  const std::vector<Memory>& memories() const { return memories_; }
  /// The memory of a value.
  const Memory& memory_of(ValueId value) const { return memories_[memory_of_[value]]; }

 private:
  IndexedVector<ValueId, Span> spans_;
  IndexedVector<ValueId, std::vector<int32_t>> reads_;
  std::vector<Memory> memories_;
  IndexedVector<ValueId, std::size_t> memory_of_;
};

}  // namespace stagecraft
