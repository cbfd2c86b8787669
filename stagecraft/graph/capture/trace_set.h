#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// Traces of one model at several sizes, and the checks that they are alike. The checks throw
/// CaptureError, which names the operator and both sizes.
class TraceSet {
 public:
  /// `may_differ`: the traces ran at the corners of a box (see generalise), and numbers may differ.
  /// Otherwise there are two traces at `sizes`: the first is computed from a graph, and the second
  /// must be equal to it.
  TraceSet(std::span<const GraphParts> traces, std::span<const GraphSize> sizes, bool may_differ);

  std::size_t size() const { return traces_.size(); }
  const GraphParts& operator[](std::size_t trace) const { return traces_[trace]; }
  bool may_differ() const { return may_differ_; }
  /// The sizes of trace 0.
  std::span<const int64_t> low() const { return low_; }
  std::span<const std::string> size_names() const { return names_; }

  /// Names a node of trace 0 in messages: `addmm (aten::addmm) in encoder`.
  std::string place_of(std::size_t node) const;
  /// Names the sizes of a trace in messages: `B = 4, S = 8`.
  std::string corner(std::size_t trace) const;

  /// The traces have the same operators, and the same numbers of results, values and states.
  void check_structure() const;
  /// Values that are changed in place share memory with the same values. Whether reshape returns a
  /// view can depend on the size. If the memory is changed, dead code and legal split points depend
  /// on it, too.
  void check_sharing() const;
  /// The traces read the same states.
  void check_states() const;

 private:
  std::span<const GraphParts> traces_;
  bool may_differ_;
  std::vector<int64_t> low_;
  std::vector<std::string> names_;
};

}  // namespace stagecraft
