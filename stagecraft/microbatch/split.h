#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "stagecraft/microbatch/chunk_spec.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// Options of split_args_kwargs_into_chunks.
struct SplitOptions {
  /// A tuple or list with one entry for each of args. Without it: ChunkSpec::default_for.
  std::optional<ChunkSpec> args_spec = std::nullopt;
  /// A dict with the names of kwargs, in any order. Without it: ChunkSpec::default_for.
  std::optional<ChunkSpec> kwargs_spec = std::nullopt;
  /// For finding a difference between the microbatches and the whole batch: a chunk keeps the full
  /// size, with zeros outside its own part, and reports no gradient of its own. Merge with the same
  /// flag.
  bool masked_debug = false;
};

/// Splits the arguments of a model into microbatches, one Arguments each, leaf by leaf.
///
/// Chunk sizes are those of at::tensor_split: n = q * chunks + k gives k chunks of q + 1, then
/// chunks - k of q. If a dimension that is split has fewer elements than `chunks`, there are
/// **fewer chunks**: as many as the smallest dimension has elements. The log (level info) names
/// that leaf. Chunks are views, not copies; those of a leaf tensor that requires grad report their
/// own gradient in grad() after a backward. An opaque leaf splits itself (Opaque::split). A block
/// mask is split along its batch, and shared by all chunks if its batch is 1.
///
///   auto parts = split_args_kwargs_into_chunks({x}, {{"mask", mask}}, 4,
///                                              {.args_spec = ChunkSpec::tuple({1})});
///
/// A spec for empty args or empty kwargs is ignored. Throws ArgumentError that names the path
/// (`args[1]["mask"]`) when a spec does not have the structure of what it is for, when a leaf
/// cannot be split as its spec says, and when a dimension to split is empty or does not exist.
std::vector<Arguments> split_args_kwargs_into_chunks(const Args& args, const Kwargs& kwargs,
                                                     int64_t chunks,
                                                     const SplitOptions& options = {});

}  // namespace stagecraft
