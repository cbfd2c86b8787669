#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/graph/graph.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// Options of one run of a program.
struct RunOptions {
  /// Calls an operator that draws random numbers, given its node; where there is none it is simply
  /// called. The way to give each of them numbers of its own.
  std::function<void(const GraphNode& node, const std::function<void()>& call)> around_random = {};
};

/// A graph made ready to run: operators looked up, arguments laid out, and for each tensor the
/// place where it is used last, after which it is let go of.
///
///   GraphProgram program(graph);
///   c10::IValue output = program.run({x}, {{"mask", mask}});
///
/// Runs with autograd as the model itself would and gives the same bits; autocast and gradients
/// that the caller has switched on or off count as they would for the model, except in regions
/// where the model had them as they were outside of it when it was captured. May run on several
/// threads at a time, as far as the model's own operators may (buffers that it updates are shared).
class GraphProgram {
 public:
  explicit GraphProgram(Graph graph);
  ~GraphProgram();
  GraphProgram(GraphProgram&&) noexcept;
  GraphProgram& operator=(GraphProgram&&) noexcept;

  const Graph& graph() const;

  /// Throws MetadataError for arguments that the graph was not made for, and GraphError, which
  /// names the node, for an operator that fails.
  c10::IValue run(const Args& args, const Kwargs& kwargs = {},
                  const RunOptions& options = {}) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
