#pragma once

#include <cstdint>
#include <string>

#include "stagecraft/attention/block_mask.h"

namespace stagecraft {

/// How large a picture of a mask may be.
struct BlockMaskTextOptions {
  /// How many (batch, head) pairs are drawn; the rest is counted in a last line.
  int64_t max_pictures = 4;
  /// The most characters for each side. A mask with more blocks is drawn with several blocks for
  /// each character.
  int64_t max_side = 64;
};

/// describe() and a picture of the blocks, a line for each row: '█' full, '░' partial, '·' empty.
/// A character that stands for several blocks is full or empty if all of them are.
///
///   BlockMask[1, 1, 512, 512] blocks 128x128 sparsity 37.5%
///   (0, 0)
///   ░···
///   █░··
///   ██░·
///   ███░
std::string to_text(const BlockMask& mask, const BlockMaskTextOptions& options = {});

}  // namespace stagecraft
