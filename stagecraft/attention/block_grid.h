#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stagecraft {

/// What a mask keeps of one block of the score matrix.
enum class BlockKind : uint8_t {
  kEmpty,    ///< Nothing; no work is done for it.
  kPartial,  ///< Some elements; the mask function says which.
  kFull,     ///< All elements; the mask function is not asked.
};

/// The kind of every block of a mask, on the host: [batch, heads, rows, columns] in that order. A
/// row is a block of queries, a column a block of keys.
class BlockGrid {
 public:
  BlockGrid(int64_t batch, int64_t heads, int64_t rows, int64_t columns)
      : batch_(batch),
        heads_(heads),
        rows_(rows),
        columns_(columns),
        kinds_(static_cast<std::size_t>(batch * heads * rows * columns), BlockKind::kEmpty) {}

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
