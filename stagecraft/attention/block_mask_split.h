#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/attention/block_mask.h"

namespace stagecraft {

/// Cuts a mask along the batch into `chunks` masks, as at::tensor_split cuts a tensor along
/// dimension 0: the first batch % chunks get one member more. The mask function of a chunk is
/// called with the batch index of the whole. A mask with batch 1 stands for any batch and is every
/// chunk itself.
///
/// Throws ArgumentError if `chunks` is not positive or the mask has a smaller batch.
std::vector<c10::intrusive_ptr<BlockMask>> split_block_mask(
    const c10::intrusive_ptr<BlockMask>& mask, int64_t chunks);

}  // namespace stagecraft
