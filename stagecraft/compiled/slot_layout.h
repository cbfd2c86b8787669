#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/compiled/package.h"

namespace stagecraft::detail {

/// The sizes of the inputs of a compiled stage: whether the stage was compiled for them, and the
/// values of the package's sizes that follow from them.
class StageSizes {
 public:
  /// `package` must outlive it. `stage` is for messages.
  StageSizes(const PackageInfo& package, std::size_t stage);

  /// One value for each of PackageInfo::sizes; 0 where the inputs do not determine it.
  /// MetadataError, with the input, its dimension and how to compile for it, for sizes that the
  /// stage was not compiled for. `inputs`: by number, undefined if no program reads it.
  std::vector<int64_t> of(std::span<const at::Tensor> inputs) const;

 private:
  std::string place(std::size_t input, std::size_t dim) const;

  const PackageInfo& package_;
  std::size_t stage_;
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
