#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/tree/arguments.h"
#include "stagecraft/tree/tree_spec.h"

namespace stagecraft {

/// The dimension along which a batch is split unless a spec says otherwise.
inline constexpr int64_t kDefaultChunkDim = 0;

/// Split along a dimension when splitting, concatenate along it when merging. Negative dimensions
/// count from the end. An opaque leaf that can be split, such as a block mask, has dimension 0
/// only.
struct TensorChunkSpec {
  int64_t dim = kDefaultChunkDim;
};

/// Every microbatch gets the same value; merging requires that all chunks still have it.
struct Replicate {};

/// acc and the next chunk to the next acc.
using ReduceFn = std::function<c10::IValue(const c10::IValue& acc, const c10::IValue& chunk)>;

/// Merging only: reduce(... reduce(reduce(init, chunk 0), chunk 1) ..., last chunk).
struct CustomReducer {
  c10::IValue init;
  ReduceFn reduce;
};

/// Merging only: the sum of the chunks (tensors or numbers), as a tensor, starting from 0.
struct LossReducer {};

/// No spec: splitting refuses the leaf, merging treats it as Replicate.
struct NoSpec {};

/// How one leaf is split or merged.
using LeafSpec = std::variant<NoSpec, TensorChunkSpec, Replicate, CustomReducer, LossReducer>;

/// Says for each leaf of a tree how it is split into microbatches or merged from them. It is a leaf
/// spec or a tuple, list or dict of specs. An integer stands for a TensorChunkSpec:
///
///   ChunkSpec::tuple({0, 0, 1})                            three tensors, the last split along 1
///   ChunkSpec::dict({{"ids", 0}, {"flag", Replicate{}}})
///   ChunkSpec::tuple({0, ChunkSpec::dict({{"mask", -1}})})
///
/// Dicts are matched by key; tuples and lists match each other.
class ChunkSpec {
 public:
  // Implicit, so that nested specs read as above.
  // NOLINTBEGIN(google-explicit-constructor)
  ChunkSpec(int64_t dim) : ChunkSpec(LeafSpec(TensorChunkSpec{dim})) {}
  ChunkSpec(TensorChunkSpec spec) : ChunkSpec(LeafSpec(spec)) {}
  ChunkSpec(Replicate spec) : ChunkSpec(LeafSpec(spec)) {}
  ChunkSpec(NoSpec spec) : ChunkSpec(LeafSpec(spec)) {}
  ChunkSpec(LossReducer spec) : ChunkSpec(LeafSpec(spec)) {}
  /// Throws ArgumentError if the function is empty.
  ChunkSpec(CustomReducer spec);
  // NOLINTEND(google-explicit-constructor)

  static ChunkSpec tuple(const std::vector<ChunkSpec>& elements);
  static ChunkSpec list(const std::vector<ChunkSpec>& elements);
  /// Throws ArgumentError if a key appears twice.
  static ChunkSpec dict(const std::vector<std::pair<std::string, ChunkSpec>>& entries);

  /// From a tree of dimensions, such as tree::tuple({0, tree::dict({{"mask", 1}})}). Throws
  /// ArgumentError that names the path of a leaf that is not an integer.
  static ChunkSpec from_dims(const c10::IValue& dims);

  /// What splitting uses when no spec is given: defined tensors, and opaque leaves that can be
  /// split, are split along kDefaultChunkDim. Everything else is replicated.
  static ChunkSpec default_for(const c10::IValue& tree);

  const TreeSpec& structure() const { return structure_; }
  std::span<const LeafSpec> leaves() const { return leaves_; }

 private:
  explicit ChunkSpec(LeafSpec leaf) : leaves_{std::move(leaf)} {}
  ChunkSpec(TreeSpec structure, std::vector<LeafSpec> leaves)
      : structure_(std::move(structure)), leaves_(std::move(leaves)) {}
  friend ChunkSpec parse_chunk_spec(std::string_view text);

  TreeSpec structure_;
  std::vector<LeafSpec> leaves_;
};

/// The default for one leaf.
LeafSpec default_leaf_spec(const c10::IValue& leaf);

/// `TensorChunkSpec(0)`, `Replicate`, `LossReducer`, `CustomReducer`, `None`.
std::string to_text(const LeafSpec& spec);

/// The specs of the leaves in the structure's text: `(TensorChunkSpec(0), {"flag": Replicate})`.
std::string to_text(const ChunkSpec& spec);

/// The inverse of to_text. Throws ParseError, also for a CustomReducer, because its function has no
/// text.
ChunkSpec parse_chunk_spec(std::string_view text);

}  // namespace stagecraft
