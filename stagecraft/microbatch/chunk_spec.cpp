#include "stagecraft/microbatch/chunk_spec.h"

#include <cstddef>

#include <ATen/core/Tensor.h>

#include "stagecraft/base/check.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/opaque.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {
namespace {

// The structures and the leaves of several specs, side by side.
struct Parts {
  std::vector<TreeSpec> children;
  std::vector<LeafSpec> leaves;

  void add(const ChunkSpec& spec) {
    children.push_back(spec.structure());
    leaves.insert(leaves.end(), spec.leaves().begin(), spec.leaves().end());
  }
};

Parts parts_of(const std::vector<ChunkSpec>& elements) {
  Parts parts;
  for (const auto& element : elements) parts.add(element);
  return parts;
}

}  // namespace

ChunkSpec::ChunkSpec(CustomReducer spec) : ChunkSpec(LeafSpec(std::move(spec))) {
  require<ArgumentError>(std::get<CustomReducer>(leaves_.front()).reduce != nullptr,
                         "CustomReducer: expected a function, got an empty one");
}

ChunkSpec ChunkSpec::tuple(const std::vector<ChunkSpec>& elements) {
  Parts parts = parts_of(elements);
  return {TreeSpec::tuple(std::move(parts.children)), std::move(parts.leaves)};
}

ChunkSpec ChunkSpec::list(const std::vector<ChunkSpec>& elements) {
  Parts parts = parts_of(elements);
  return {TreeSpec::list(std::move(parts.children)), std::move(parts.leaves)};
}

ChunkSpec ChunkSpec::dict(const std::vector<std::pair<std::string, ChunkSpec>>& entries) {
  std::vector<std::string> keys;
  Parts parts;
  for (const auto& [key, spec] : entries) {
    keys.push_back(key);
    parts.add(spec);
  }
  return {TreeSpec::dict(keys, std::move(parts.children)), std::move(parts.leaves)};
}

ChunkSpec ChunkSpec::from_dims(const c10::IValue& dims) {
  const tree::Flat flat = tree::flatten(dims, "dims");
  std::vector<LeafSpec> leaves;
  leaves.reserve(flat.leaves.size());
  for (std::size_t i = 0; i < flat.leaves.size(); ++i) {
    const auto& leaf = flat.leaves[i];
    require<ArgumentError>(leaf.isInt(), "{}: expected a dimension, got {}",
                           flat.spec.leaf_path(i, "dims"), describe(leaf));
    leaves.emplace_back(TensorChunkSpec{leaf.toInt()});
  }
  return {flat.spec, std::move(leaves)};
}

ChunkSpec ChunkSpec::default_for(const c10::IValue& tree) {
  const tree::Flat flat = tree::flatten(tree);
  std::vector<LeafSpec> leaves;
  leaves.reserve(flat.leaves.size());
  for (const auto& leaf : flat.leaves) leaves.push_back(default_leaf_spec(leaf));
  return {flat.spec, std::move(leaves)};
}

LeafSpec default_leaf_spec(const c10::IValue& leaf) {
  const auto opaque = find_opaque<Opaque>(leaf);
  const bool is_split =
      (leaf.isTensor() && leaf.toTensor().defined()) || (opaque && opaque->max_chunks());
  return is_split ? LeafSpec(TensorChunkSpec{}) : LeafSpec(Replicate{});
}

}  // namespace stagecraft
