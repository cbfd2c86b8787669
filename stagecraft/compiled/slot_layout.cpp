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

StageSizes::StageSizes(const PackageInfo& package, std::size_t stage, const Graph& graph)
    : package_(package), stage_(stage), graph_(graph) {
  const std::vector<std::string> names = graph.size_names();
  const auto number_of = [&](const std::string& name) {
    const auto found = std::ranges::find(names, name);
    return found == names.end() ? kNone : static_cast<std::size_t>(found - names.begin());
  };
  for (const CompiledSize& size : package.sizes) sizes_.push_back(number_of(size.name));
  for (const FixedSize& size : package.fixed) fixed_.push_back(number_of(size.name));
  const CompiledStageInfo& own = package.stages[stage];
  for (std::size_t i = 0; i < own.inputs.size(); ++i) {
    slots_.push_back(find_slot(own, ProgramSlot::Kind::kInput, i));
  }
}

std::string StageSizes::dimension(std::size_t input, std::size_t dim) const {
  return fmt::format("stage {}, input '{}', dimension {}", stage_,
                     package_.stages[stage_].inputs[input], dim);
}

std::string StageSizes::place(std::size_t size) const {
  const GraphParts& parts = graph_.parts();
  std::size_t input = 0;
  for (const Argument& leaf : parts.inputs) {
    if (leaf.value() == nullptr) continue;
    const std::vector<SizeExpr>& shape = graph_.value(*leaf.value()).shape;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == SizeExpr::of_size(static_cast<int>(size))) return dimension(input, d);
    }
    ++input;
  }
  return fmt::format("stage {}", stage_);
}

std::vector<int64_t> StageSizes::of(std::span<const int64_t> graph_sizes,
                                    std::span<const at::Tensor> inputs) const {
  std::vector<int64_t> sizes;
  for (std::size_t s = 0; s < sizes_.size(); ++s) {
    const CompiledSize& size = package_.sizes[s];
    const int64_t value = sizes_[s] == kNone ? 0 : graph_sizes[sizes_[s]];
    sizes.push_back(value);
    if (value == 0) continue;
    require<MetadataError>(value >= size.least && value <= size.greatest,
                           "{}: {} is {}, but the stages were compiled for {} to {}; compile the "
                           "model for that size (stagecraft compile)",
                           place(sizes_[s]), size.name, value, size.least, size.greatest);
  }
  for (std::size_t f = 0; f < fixed_.size(); ++f) {
    const FixedSize& size = package_.fixed[f];
    const int64_t value = fixed_[f] == kNone ? 0 : graph_sizes[fixed_[f]];
    require<MetadataError>(value == 0 || value == size.value,
                           "{}: {} is {}, but the stages were compiled for {} alone; compile the "
                           "model without --fix {} (stagecraft compile)",
                           place(fixed_[f]), size.name, value, size.value, size.name);
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i] == nullptr) continue;
    const auto& expected = slots_[i]->sizes;
    require<MetadataError>(static_cast<std::size_t>(inputs[i].dim()) == expected.size(),
                           "stage {}, input '{}': expected {} dimensions, got {}", stage_,
                           package_.stages[stage_].inputs[i], expected.size(), describe(inputs[i]));
    for (std::size_t d = 0; d < expected.size(); ++d) {
      if (!expected[d] || !is_known(*expected[d], sizes)) continue;
      const int64_t wanted = expected[d]->at(sizes);
      require<MetadataError>(
          wanted == inputs[i].sizes()[d],
          "{}: the stage was compiled for the size {}, got {}; compile the model "
          "for that size (stagecraft compile)",
          dimension(i, d), wanted, inputs[i].sizes()[d]);
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
