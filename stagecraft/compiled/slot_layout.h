#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/compiled/package.h"
#include "stagecraft/graph/graph.h"

namespace stagecraft::detail {

/// One value for each of PackageInfo::sizes, given the sizes of a graph; 0 for a size that is not
/// known. MetadataError, with the input, its dimension and how to compile for it, for sizes that
/// the stages were not compiled for. `graph` is that of the model or of a stage. `where` names it
/// in messages.
std::vector<int64_t> compiled_sizes(const PackageInfo& package, const Graph& graph,
                                    std::span<const int64_t> graph_sizes, const std::string& where);

/// Finds the sizes of the inputs of a compiled stage, and checks that the stage was compiled for
/// them.
class StageSizes {
 public:
  /// `package` must outlive it. `graph` is that of the stage.
  StageSizes(const PackageInfo& package, std::size_t stage, const Graph& graph);

  /// As compiled_sizes, and MetadataError for inputs that differ from what the programs take.
  /// `graph_sizes` are those of InputBinding::sizes. `inputs` has the tensors by their numbers in
  /// the package.
  std::vector<int64_t> of(std::span<const int64_t> graph_sizes,
                          std::span<const at::Tensor> inputs) const;

 private:
  const PackageInfo& package_;
  std::size_t stage_;
  Graph graph_;
  std::vector<const ProgramSlot*> slots_;  // by input; null if no program reads it
};

/// The first slot with that kind and index that a program of the stage reads; null if no program
/// does.
const ProgramSlot* find_slot(const CompiledStageInfo& stage, ProgramSlot::Kind kind,
                             std::size_t index);

/// The tensor with the strides that a program expects in the slot, in aligned memory. The tensor
/// itself if it has them. Slots whose strides are not known take contiguous tensors.
at::Tensor laid_out(const at::Tensor& tensor, const ProgramSlot& slot,
                    std::span<const int64_t> sizes);

/// Whether the tensor already is as `laid_out` would make it.
bool is_laid_out(const at::Tensor& tensor, const ProgramSlot& slot, std::span<const int64_t> sizes);

}  // namespace stagecraft::detail
