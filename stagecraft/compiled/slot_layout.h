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

/// The sizes of the inputs of a compiled stage: whether the stage was compiled for them.
class StageSizes {
 public:
  /// `package` must outlive it. `graph` is that of the stage.
  StageSizes(const PackageInfo& package, std::size_t stage, const Graph& graph);

  /// One value for each of PackageInfo::sizes; 0 where the inputs do not determine it.
  /// MetadataError, with the input, its dimension and how to compile for it, for sizes that the
  /// stage was not compiled for. `graph_sizes`: of InputBinding::sizes. `inputs`: by leaf,
  /// undefined for a leaf that is no tensor.
  std::vector<int64_t> of(std::span<const int64_t> graph_sizes,
                          std::span<const at::Tensor> inputs) const;

 private:
  static constexpr std::size_t kNone = SIZE_MAX;

  /// Where the caller gives a size of the graph.
  std::string place(std::size_t size) const;
  std::string dimension(std::size_t input, std::size_t dim) const;

  const PackageInfo& package_;
  std::size_t stage_;
  Graph graph_;
  std::vector<std::size_t> sizes_;  // of the graph, by number of PackageInfo::sizes; or kNone
  std::vector<std::size_t> fixed_;  // the same for PackageInfo::fixed
  std::vector<const ProgramSlot*> slots_;  // by input; null if no program reads it
};

/// The first slot of a program of the stage that reads this; null if no program does.
const ProgramSlot* find_slot(const CompiledStageInfo& stage, ProgramSlot::Kind kind,
                             std::size_t index);

/// The tensor with the strides that a program expects in the slot, in aligned memory. The tensor
/// itself if it has them. Slots whose strides are not known take contiguous tensors.
at::Tensor laid_out(const at::Tensor& tensor, const ProgramSlot& slot,
                    std::span<const int64_t> sizes);

/// Whether the tensor already is as `laid_out` would make it.
bool is_laid_out(const at::Tensor& tensor, const ProgramSlot& slot, std::span<const int64_t> sizes);

}  // namespace stagecraft::detail
