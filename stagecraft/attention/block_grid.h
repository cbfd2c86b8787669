#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stagecraft {

/// How much of one block of the score matrix a mask keeps.
enum class BlockKind : uint8_t {
  kEmpty,    ///< Nothing; no work is done for it.
  kPartial,  ///< Some elements; the mask function says which.
  kFull,     ///< All elements; the mask function is not asked.
};

/// The kind of every block of a mask, on the host: [batch, heads, rows, columns] in that order. A
/// row is a block of queries, a column a block of keys.
class BlockGrid {
 public:
  /// All blocks empty. Throws ArgumentError for negative sizes and for more than kMaxBlocks blocks.
  BlockGrid(int64_t batch, int64_t heads, int64_t rows, int64_t columns);

  /// More would not fit into memory: a mask takes 17 bytes a block.
  static constexpr int64_t kMaxBlocks = int64_t{1} << 36;

  int64_t batch() const { return batch_; }
  int64_t heads() const { return heads_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }

  BlockKind at(int64_t b, int64_t h, int64_t row, int64_t column) const {
    return kinds_[offset(b, h, row, column)];
  }
  BlockKind& at(int64_t b, int64_t h, int64_t row, int64_t column) {
    return kinds_[offset(b, h, row, column)];
  }
  const std::vector<BlockKind>& kinds() const { return kinds_; }

  /// The members [begin, begin + size) of the batch.
  BlockGrid narrow_batch(int64_t begin, int64_t size) const;

  /// How many blocks are not empty.
  int64_t kept() const {
    int64_t n = 0;
    for (BlockKind kind : kinds_) n += kind != BlockKind::kEmpty;
    return n;
  }

 private:
  std::size_t offset(int64_t b, int64_t h, int64_t row, int64_t column) const {
    return static_cast<std::size_t>(((b * heads_ + h) * rows_ + row) * columns_ + column);
  }

  int64_t batch_;
  int64_t heads_;
  int64_t rows_;
  int64_t columns_;
  std::vector<BlockKind> kinds_;
};

}  // namespace stagecraft
