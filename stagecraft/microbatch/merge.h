#pragma once

#include <optional>
#include <span>

#include <ATen/core/ivalue.h>

#include "stagecraft/microbatch/chunk_spec.h"

namespace stagecraft {

/// Options of merge_chunks.
struct MergeOptions {
  /// The chunks come from a split with masked_debug: each has the full size, and only the chunk's
  /// own part is used.
  bool masked_debug = false;
};

/// Merges the outputs of microbatches, in their order, into the output of the batch.
///
/// Without a spec every leaf must be a tensor, or an opaque leaf with Opaque::merge, and is
/// concatenated along kDefaultChunkDim; the result has the structure of chunk 0. With a spec the
/// result has the structure of the spec, and each leaf is merged as its spec says:
///
///   TensorChunkSpec(d)       concatenated along d
///   CustomReducer            folded from its initial value, in the order of the chunks
///   LossReducer              summed
///   Replicate, None          must be equal in all chunks; the value of chunk 0
///
///   auto output = merge_chunks(outputs, ChunkSpec::dict({{"logits", 0}, {"loss",
///   LossReducer{}}}));
///
/// Throws ArgumentError if there are no chunks, and MetadataError that names the path
/// (`chunks[2]["logits"]`) if a chunk has a different structure or a leaf cannot be merged.
c10::IValue merge_chunks(std::span<const c10::IValue> chunks,
                         const std::optional<ChunkSpec>& spec = std::nullopt,
                         const MergeOptions& options = {});

}  // namespace stagecraft
