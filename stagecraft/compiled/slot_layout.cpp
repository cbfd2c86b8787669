#include "stagecraft/compiled/slot_layout.h"

#include <algorithm>
#include <bit>
#include <optional>

#include <fmt/format.h>

#include <ATen/ops/empty_strided.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/tree/tensor_meta.h"

namespace stagecraft::detail {
namespace {

// What Inductor assumes of memory on a GPU.
constexpr std::uintptr_t kAlignment = 16;

/// The number of the size that the expression consists of; nothing for any other expression.
std::optional<std::size_t> plain_size(const SizeExpr& expr) {
  if (expr.terms().size() != 1 || expr.terms()[0].factor != 1) return std::nullopt;
  const SizeSet sizes = expr.terms()[0].sizes;
  if (std::popcount(sizes) != 1) return std::nullopt;
  return static_cast<std::size_t>(std::countr_zero(sizes));
}

bool is_known(const SizeExpr& expr, std::span<const int64_t> sizes) {
  for (SizeSet left = expr.sizes(); left != 0; left &= left - 1) {
    if (sizes[static_cast<std::size_t>(std::countr_zero(left))] == 0) return false;
  }
  return true;
}

/// The strides of a slot; nothing if one is not known.
std::optional<std::vector<int64_t>> strides_of(const ProgramSlot& slot,
                                               std::span<const int64_t> sizes) {
  std::vector<int64_t> strides;
  strides.reserve(slot.strides.size());
  for (const std::optional<SizeExpr>& stride : slot.strides) {
    if (!stride || !is_known(*stride, sizes)) return std::nullopt;
    strides.push_back(stride->at(sizes));
  }
  return strides;
}

/// Strides of dimensions with one element do not matter.
bool has_strides(const at::Tensor& tensor, std::span<const int64_t> strides) {
  if (static_cast<std::size_t>(tensor.dim()) != strides.size()) return false;
  for (std::size_t d = 0; d < strides.size(); ++d) {
    if (tensor.sizes()[d] != 1 && tensor.strides()[d] != strides[d]) return false;
  }
  return true;
}

bool is_aligned(const at::Tensor& tensor) {
  return tensor.is_cpu() ||
         reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % kAlignment == 0;
}

}  // namespace

const ProgramSlot* find_slot(const CompiledStageInfo& stage, ProgramSlot::Kind kind,
                             std::size_t index) {
  for (const auto& program : stage.programs) {
    if (!program) continue;
    const auto found = std::ranges::find_if(program->inputs, [&](const ProgramSlot& slot) {
      return slot.kind == kind && slot.index == index;
    });
    if (found != program->inputs.end()) return &*found;
  }
  return nullptr;
}

StageSizes::StageSizes(const PackageInfo& package, std::size_t stage)
    : package_(package), stage_(stage) {
  const CompiledStageInfo& own = package.stages[stage];
  for (std::size_t i = 0; i < own.inputs.size(); ++i) {
    const ProgramSlot* slot = find_slot(own, ProgramSlot::Kind::kInput, i);
    slots_.push_back(slot != nullptr ? slot : find_slot(own, ProgramSlot::Kind::kSizesOf, i));
  }
}

std::string StageSizes::place(std::size_t input, std::size_t dim) const {
  return fmt::format("stage {}, input '{}', dimension {}", stage_,
                     package_.stages[stage_].inputs[input], dim);
}

std::vector<int64_t> StageSizes::of(std::span<const at::Tensor> inputs) const {
  std::vector<int64_t> sizes(package_.sizes.size(), 0);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i] == nullptr) continue;
    const auto given = inputs[i].sizes();
    const auto& expected = slots_[i]->sizes;
    require<MetadataError>(given.size() == expected.size(),
                           "stage {}, input '{}': expected {} dimensions, got {}", stage_,
                           package_.stages[stage_].inputs[i], expected.size(), describe(inputs[i]));
    for (std::size_t d = 0; d < given.size(); ++d) {
      const auto size = expected[d] ? plain_size(*expected[d]) : std::nullopt;
      if (!size || sizes[*size] != 0) continue;
      const CompiledSize& range = package_.sizes[*size];
      require<MetadataError>(given[d] >= range.least && given[d] <= range.greatest,
                             "{}: the stage was compiled for sizes from {} to {}, got {}; compile "
                             "the model for that size (stagecraft compile)",
                             place(i, d), range.least, range.greatest, given[d]);
      sizes[*size] = given[d];
    }
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i] == nullptr) continue;
    for (std::size_t d = 0; d < slots_[i]->sizes.size(); ++d) {
      const std::optional<SizeExpr>& expected = slots_[i]->sizes[d];
      if (!expected || !is_known(*expected, sizes)) continue;
      const int64_t wanted = expected->at(sizes);
      require<MetadataError>(
          wanted == inputs[i].sizes()[d],
          "{}: the stage was compiled for the size {}, got {}; compile the model for that size, or "
          "so that the size may change (stagecraft compile --dynamic)",
          place(i, d), wanted, inputs[i].sizes()[d]);
    }
  }
  return sizes;
}

bool is_laid_out(const at::Tensor& tensor, const ProgramSlot& slot,
                 std::span<const int64_t> sizes) {
  const auto strides = strides_of(slot, sizes);
  return (strides ? has_strides(tensor, *strides) : tensor.is_contiguous()) && is_aligned(tensor);
}

at::Tensor laid_out(const at::Tensor& tensor, const ProgramSlot& slot,
                    std::span<const int64_t> sizes) {
  const auto strides = strides_of(slot, sizes);
  if (!strides) {
    const at::Tensor result = tensor.contiguous();
    return is_aligned(result) ? result : result.clone();
  }
  if (has_strides(tensor, *strides) && is_aligned(tensor)) return tensor;
  return at::empty_strided(tensor.sizes(), *strides, tensor.options()).copy_(tensor);
}

}  // namespace stagecraft::detail
