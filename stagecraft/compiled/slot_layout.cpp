#include "stagecraft/compiled/slot_layout.h"

#include <algorithm>
#include <bit>
#include <optional>

#include <fmt/format.h>

#include <ATen/ops/empty_strided.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/graph/size_analysis.h"
#include "stagecraft/tree/tensor_meta.h"

namespace stagecraft::detail {
namespace {

// The alignment that Inductor assumes for memory on a GPU.
constexpr std::uintptr_t kAlignment = 16;

bool is_known(const SizeExpr& expr, std::span<const int64_t> sizes) {
  for (SizeSet left = expr.sizes(); left != 0; left &= left - 1) {
    if (sizes[static_cast<std::size_t>(std::countr_zero(left))] == 0) return false;
  }
  return true;
}

/// "input 'x', dimension 0": the input that determines a size of the graph, for messages.
std::string input_with(const Graph& graph, const std::string& size) {
  const GraphParts& parts = graph.parts();
  for (const Argument& leaf : parts.inputs) {
    if (leaf.value() == nullptr) continue;
    const GraphValue& value = graph.value(*leaf.value());
    for (std::size_t d = 0; d < value.shape.size(); ++d) {
      for (std::size_t s = 0; s < parts.sizes.size(); ++s) {
        if (parts.sizes[s].name == size && value.shape[d] == SizeExpr::of_size(static_cast<int>(s)))
          return fmt::format("input '{}', dimension {}", value.name, d);
      }
    }
  }
  return "the inputs";
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

std::vector<int64_t> compiled_sizes(const PackageInfo& package, const Graph& graph,
                                    std::span<const int64_t> graph_sizes,
                                    const std::string& where) {
  const std::vector<GraphSize>& all = graph.parts().sizes;
  const auto value_of = [&](const std::string& name) -> std::optional<int64_t> {
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].name != name) continue;
      // 0 is also the value of a size that the inputs do not determine. Only a 0 needs the search.
      const bool is_given =
          graph_sizes[i] != 0 || (known_sizes(graph.parts()) >> i & SizeSet{1}) != 0;
      return is_given ? std::optional(graph_sizes[i]) : std::nullopt;
    }
    return std::nullopt;
  };
  std::vector<int64_t> sizes;
  for (const CompiledSize& size : package.sizes) {
    const std::optional<int64_t> given = value_of(size.name);
    const int64_t value = sizes.emplace_back(given.value_or(0));
    if (!given || (value >= size.least && value <= size.greatest)) continue;
    throw MetadataError(fmt::format(
        "{}{}: {} is {}, but the stages were compiled for {} to {}; compile the model "
        "for that size (stagecraft compile)",
        where, input_with(graph, size.name), size.name, value, size.least, size.greatest));
  }
  for (const FixedSize& size : package.fixed) {
    const std::optional<int64_t> value = value_of(size.name);
    if (!value || *value == size.value) continue;
    throw MetadataError(
        fmt::format("{}{}: {} is {}, but the stages were compiled for {} alone; compile the model "
                    "without --fix {} (stagecraft compile)",
                    where, input_with(graph, size.name), size.name, *value, size.value, size.name));
  }
  return sizes;
}

StageSizes::StageSizes(const PackageInfo& package, std::size_t stage, const Graph& graph)
    : package_(package), stage_(stage), graph_(graph) {
  const CompiledStageInfo& own = package.stages[stage];
  for (std::size_t i = 0; i < own.inputs.size(); ++i) {
    slots_.push_back(find_slot(own, ProgramSlot::Kind::kInput, i));
  }
}

std::vector<int64_t> StageSizes::of(std::span<const int64_t> graph_sizes,
                                    std::span<const at::Tensor> inputs) const {
  std::vector<int64_t> sizes =
      compiled_sizes(package_, graph_, graph_sizes, fmt::format("stage {}, ", stage_));
  const std::vector<std::string>& names = package_.stages[stage_].inputs;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i] == nullptr) continue;
    const auto& expected = slots_[i]->sizes;
    require<MetadataError>(static_cast<std::size_t>(inputs[i].dim()) == expected.size(),
                           "stage {}, input '{}': expected {} dimensions, got {}", stage_, names[i],
                           expected.size(), describe(inputs[i]));
    for (std::size_t d = 0; d < expected.size(); ++d) {
      if (!expected[d] || !is_known(*expected[d], sizes)) continue;
      const int64_t wanted = expected[d]->at(sizes);
      require<MetadataError>(wanted == inputs[i].sizes()[d],
                             "stage {}, input '{}', dimension {}: the stage was compiled for the "
                             "size {}, got {}; export the model with that size dynamic, and "
                             "compile it again",
                             stage_, names[i], d, wanted, inputs[i].sizes()[d]);
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
