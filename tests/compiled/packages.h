#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/compiled/compiled_pipe.h"
#include "stagecraft/runtime/loss.h"
#include "stagecraft/runtime/pipeline.h"

namespace stagecraft {

/// The path of a package that make_packages.py wrote: "mlp", "gpt", "drop1", "drop2", "half".
std::string package_path(const std::string& name);

/// The same pipe on the same tensors, which runs the graphs of its stages.
Pipe graphs_of(const CompiledPipe& pipe);

/// Token ids for "gpt" and "drop1", and the arguments of both: ids and targets.
at::Tensor some_ids(int64_t rows, uint64_t seed = 1);
Arguments token_arguments(int64_t rows, uint64_t seed = 1);
/// These models return their loss.
Loss own_loss();

/// What one step gave. Gradients are removed from the parameters.
struct Stepped {
  std::vector<at::Tensor> losses;
  std::vector<at::Tensor> grads;  ///< of all parameters; undefined without a gradient
};
Stepped step_of(Pipeline& run, const Pipe& pipe, const Arguments& inputs, int32_t microbatches);
/// One step of "gpt" or "drop1" on 8 rows.
Stepped gpt_step(const Pipe& pipe, const PipelineOptions& options, int32_t microbatches = 4);

/// The largest difference of two tensors relative to the largest element of the second.
double relative_difference(const at::Tensor& a, const at::Tensor& b);

}  // namespace stagecraft
