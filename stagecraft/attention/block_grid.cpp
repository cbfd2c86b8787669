#include "stagecraft/attention/block_grid.h"

#include <algorithm>
#include <limits>

#include "stagecraft/base/check.h"

namespace stagecraft {
namespace {

std::size_t count_blocks(int64_t batch, int64_t heads, int64_t rows, int64_t columns) {
  require<ArgumentError>(batch >= 0 && heads >= 0 && rows >= 0 && columns >= 0,
                         "the sizes of a grid of blocks must not be negative, got [{}, {}, {}, {}]",
                         batch, heads, rows, columns);
  // The lists of a mask contain numbers of rows and columns as int32.
  constexpr int64_t kMaxSide = std::numeric_limits<int32_t>::max();
  int64_t count = 1;
  bool fits = rows <= kMaxSide && columns <= kMaxSide;
  for (const int64_t size : {batch, heads, rows, columns}) {
    fits = fits && (size == 0 || count <= BlockGrid::kMaxBlocks / size);
    if (fits) count *= size;
  }
  require<ArgumentError>(
      fits, "a mask of [{}, {}, {}, {}] blocks ([batch, heads, rows, columns]) is too large", batch,
      heads, rows, columns);
  return static_cast<std::size_t>(count);
}

}  // namespace

BlockGrid::BlockGrid(int64_t batch, int64_t heads, int64_t rows, int64_t columns)
    : batch_(batch),
      heads_(heads),
      rows_(rows),
      columns_(columns),
      kinds_(count_blocks(batch, heads, rows, columns), BlockKind::kEmpty) {}

BlockGrid BlockGrid::narrow_batch(int64_t begin, int64_t size) const {
  require<ArgumentError>(begin >= 0 && size >= 0 && size <= batch_ - begin,
                         "members {} to {} are not in a batch of {}", begin, begin + size, batch_);
  BlockGrid part(size, heads_, rows_, columns_);
  const auto member = static_cast<std::ptrdiff_t>(heads_ * rows_ * columns_);
  std::copy_n(kinds_.begin() + begin * member, size * member, part.kinds_.begin());
  return part;
}

}  // namespace stagecraft
