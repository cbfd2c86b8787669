#include "stagecraft/graph/capture/example_inputs.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/remainder.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/names.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

/// Each doubles the number of traces.
/// With four sizes the model is traced at 2^4 = 16 corners.
constexpr std::size_t kMaxTracedSizes = 4;

}  // namespace

ExampleInputs::ExampleInputs(const Arguments& example, const std::vector<SizeSpec>& specs)
    : example_(example) {
  const std::vector<Leaf> leaves = tensors();
  for (const SizeSpec& spec : specs) add_size(spec, leaves);
}

Arguments ExampleInputs::at(std::span<const int64_t> sizes) const {
  Arguments result;
  auto resize = [&](const std::string& path, const c10::IValue& leaf) {
    return resized(path, leaf, sizes);
  };
  for (std::size_t i = 0; i < example_.args.size(); ++i) {
    result.args.push_back(
        tree::map_with_path(example_.args[i], fmt::format("args[{}]", i), resize));
  }
  for (const auto& [name, value] : example_.kwargs) {
    result.kwargs.set(name,
                      tree::map_with_path(value, fmt::format("kwargs[\"{}\"]", name), resize));
  }
  return result;
}

std::vector<ExampleInputs::Leaf> ExampleInputs::tensors() const {
  std::vector<Leaf> leaves;
  auto add = [&](const std::string& path, const c10::IValue& leaf) {
    if (leaf.isTensor() && leaf.toTensor().defined()) leaves.push_back({path, leaf.toTensor()});
    return leaf;
  };
  for (std::size_t i = 0; i < example_.args.size(); ++i) {
    tree::map_with_path(example_.args[i], fmt::format("args[{}]", i), add);
  }
  for (const auto& [name, value] : example_.kwargs) {
    tree::map_with_path(value, fmt::format("kwargs[\"{}\"]", name), add);
  }
  return leaves;
}

void ExampleInputs::add_size(const SizeSpec& spec, const std::vector<Leaf>& leaves) {
  require<ArgumentError>(is_name(spec.name), "'{}' is not a valid name for a size", spec.name);
  require<ArgumentError>(sizes_.size() < kMaxTracedSizes, "expected at most {} sizes that change",
                         kMaxTracedSizes);
  const std::size_t number = sizes_.size();
  int64_t example = -1;
  auto add = [&](const Leaf& leaf, int64_t dim) {
    const int64_t there = leaf.tensor.size(dim);
    require<ArgumentError>(example < 0 || there == example,
                           "size {}: it is {} at {}, dimension {}, but {} before", spec.name, there,
                           leaf.path, dim, example);
    for (const Place& other : places_) {
      if (other.path != leaf.path || other.dim != dim) continue;
      throw ArgumentError(
          fmt::format("{}, dimension {}: expected one size, got {} and {}", leaf.path, dim,
                      other.size < sizes_.size() ? sizes_[other.size].name : spec.name, spec.name));
    }
    example = there;
    places_.push_back({leaf.path, dim, number});
  };
  for (const SizeSpec::Place& place : spec.places) {
    const auto found = std::ranges::find(leaves, place.input, &Leaf::path);
    require<ArgumentError>(found != leaves.end(), "size {}: there is no tensor at {}", spec.name,
                           place.input);
    const int64_t dims = found->tensor.dim();
    require<ArgumentError>(place.dim >= -dims && place.dim < dims,
                           "size {}: {} has {} dimensions, got dimension {}", spec.name,
                           place.input, dims, place.dim);
    add(*found, place.dim < 0 ? place.dim + dims : place.dim);
  }
  if (spec.places.empty()) {
    for (const Leaf& leaf : leaves) {
      const bool is_batch =
          leaf.tensor.dim() > 0 && (example < 0 || leaf.tensor.size(0) == example);
      if (is_batch) add(leaf, 0);
    }
  }
  if (example < 0) return;  // no tensor has a dimension: nothing changes
  require<ArgumentError>(example > 0, "size {}: expected at least 1 in the example, got 0",
                         spec.name);
  // Odd, and far from n and n + 1, where B / 2 and B * B fit an expression: at 4 n + 3 they differ
  // from it.
  const int64_t probe = spec.probe.value_or(4 * example + 3);
  require<ArgumentError>(probe > 0 && probe != example && probe != example + 1,
                         "size {}: expected a probe other than {} and {}, got {}", spec.name,
                         example, example + 1, probe);
  sizes_.push_back({.name = spec.name,
                    .example = example,
                    .least = 1,
                    .greatest = std::max(example + 1, probe)});
  probes_.push_back(probe);
}

c10::IValue ExampleInputs::resized(const std::string& path, const c10::IValue& leaf,
                                   std::span<const int64_t> sizes) const {
  if (!leaf.isTensor() || !leaf.toTensor().defined()) return leaf;
  const c10::NoGradGuard no_grad;
  at::Tensor tensor = leaf.toTensor();
  for (const Place& place : places_) {
    const int64_t wanted = sizes[place.size];
    if (place.path != path || tensor.size(place.dim) == wanted) continue;
    // Rows of the example are repeated: random numbers could be invalid, such as token ids beyond
    // the vocabulary.
    const auto rows =
        at::arange(wanted, tensor.options().dtype(at::kLong)).remainder(tensor.size(place.dim));
    tensor = at::index_select(tensor, place.dim, rows);
  }
  return tensor;
}

}  // namespace stagecraft
