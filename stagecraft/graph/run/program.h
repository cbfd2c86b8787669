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
  /// Called instead of every operator that draws random numbers, and must call `call`, which runs
  /// the operator. It can give each operator random numbers of its own. If empty, operators are
  /// called directly.
  std::function<void(const GraphNode& node, const std::function<void()>& call)> around_random = {};
};

/// A graph that is ready to run: operators are looked up, arguments are laid out, and each tensor
/// is released after its last use.
///
///   GraphProgram program(graph);
///   c10::IValue output = program.run({x}, {{"mask", mask}});
///
/// Runs with autograd like the model itself, with bitwise equal results. Grad mode and autocast of
/// the caller have the same effect as for the model, except in regions where the model set them
/// itself. May run on several threads at the same time if the model's own operators may (buffers
/// that it updates are shared).
class GraphProgram {
 public:
  explicit GraphProgram(Graph graph);
  ~GraphProgram();
  GraphProgram(GraphProgram&&) noexcept;
  GraphProgram& operator=(GraphProgram&&) noexcept;

  const Graph& graph() const;

  /// Throws MetadataError for arguments that the graph does not take, and GraphError, which names
  /// the node, for an operator that fails.
  c10::IValue run(const Args& args, const Kwargs& kwargs = {},
                  const RunOptions& options = {}) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
