#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// Under which of its names a state is read: the last read has the last name, those before it the
/// others in order, and surplus ones the last but one.
inline std::size_t name_of_read(std::size_t read, std::size_t reads, std::size_t names) {
  if (names == 1 || read + 1 == reads) return read + 1 == reads && reads > 1 ? names - 1 : 0;
  return read < names - 1 ? read : names - 2;
}

/// Where the values of a graph are made and read, in numbers of nodes. What comes from outside is
/// made at -1, what is returned is read at the number of nodes.
class ValueUses {
 public:
  struct Span {
    int32_t made = -1;
    int32_t last = -1;  ///< the last read; that of an unread one is where it is made
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

  Span of(ValueId value) const { return spans_[value.position()]; }
  /// The nodes that read it, ascending, then the number of nodes for an output.
  const std::vector<int32_t>& reads(ValueId value) const { return reads_[value.position()]; }
  const std::vector<Memory>& memories() const { return memories_; }
  /// That of a value.
  const Memory& memory_of(ValueId value) const { return memories_[memory_of_[value.position()]]; }

 private:
  std::vector<Span> spans_;
  std::vector<std::vector<int32_t>> reads_;
  std::vector<Memory> memories_;
  std::vector<std::size_t> memory_of_;
};

}  // namespace stagecraft
