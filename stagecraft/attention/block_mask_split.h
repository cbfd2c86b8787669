#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/attention/block_mask.h"

namespace stagecraft {

/// Splits a mask along the batch into `chunks` masks, as at::tensor_split splits a tensor along
/// dimension 0: the first batch % chunks chunks have one member more than the others. The mask
/// function of a chunk is called with the index in the whole batch. A mask with batch 1 is valid
/// for any batch; every chunk is the mask itself.
///
/// Throws ArgumentError if `chunks` is not positive or the mask has a smaller batch.
std::vector<c10::intrusive_ptr<BlockMask>> split_block_mask(
    const c10::intrusive_ptr<BlockMask>& mask, int64_t chunks);

}  // namespace stagecraft
