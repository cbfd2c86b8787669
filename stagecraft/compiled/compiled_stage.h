#pragma once

#include <memory>

#include <c10/core/Device.h>

#include "stagecraft/base/index.h"
#include "stagecraft/compiled/package.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/tree/stage_body.h"

namespace stagecraft {

/// Options of compiled stages.
struct CompiledOptions {
  /// Run B as I and then W. Gradients are then bitwise equal in all schedules. By default B runs a
  /// program of its own, which is faster and may differ from I and W in the last bits.
  bool same_bits = false;
};

/// The body of a stage that runs the programs of a package. Its parameters and buffers are the
/// tensors of `graph`, the graph of the stage.
///
/// Its forward makes one autograd node. F runs `forward`, B `backward`, I `input_backward` and W
/// `weight_backward`; an eval runs `eval`. What the backwards read is held by the node, so any
/// number of microbatches may be in flight. If the inputs of a stage need no gradient, its backward
/// has no halves: I does nothing, and W runs `backward`. Gradients are added to the .grad of the
/// parameters in place, microbatch by microbatch. Random numbers depend on StageContext::draw and
/// on the names of the operators, like those of stage_body(graph), but they are different numbers.
/// `prepare` runs in the first forward of each step, and when a parameter has changed.
///
/// Throws what CompiledProgram throws, and FileError if the graph does not fit the package.
StageBody compiled_body(std::shared_ptr<const CompiledPackage> package, StageId stage,
                        const Graph& graph, c10::Device device,
                        const CompiledOptions& options = {});

}  // namespace stagecraft
