#include "stagecraft/attention/block_mask_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "stagecraft/base/check.h"

namespace stagecraft {
namespace {

struct Span {
  int64_t begin;
  int64_t end;
};

const char* draw(const BlockGrid& grid, int64_t b, int64_t h, Span rows, Span columns) {
  const BlockKind first = grid.at(b, h, rows.begin, columns.begin);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t column = columns.begin; column < columns.end; ++column) {
      if (grid.at(b, h, row, column) != first) return "░";
    }
  }
  switch (first) {
    case BlockKind::kEmpty:
      return "·";
    case BlockKind::kPartial:
      return "░";
    case BlockKind::kFull:
      return "█";
  }
  return "";
}

}  // namespace

std::string to_text(const BlockMask& mask, const BlockMaskTextOptions& options) {
  require<ArgumentError>(options.max_pictures >= 0 && options.max_side > 0,
                         "a picture needs max_pictures >= 0 and max_side > 0, got {} and {}",
                         options.max_pictures, options.max_side);
  const BlockGrid& grid = mask.grid();
  const int64_t side = std::max(grid.rows(), grid.columns());
  const int64_t step = std::max<int64_t>(1, (side + options.max_side - 1) / options.max_side);
  const int64_t pictures = grid.batch() * grid.heads();

  std::string text = mask.describe() + "\n";
  if (step > 1) text += fmt::format("{}x{} blocks a character\n", step, step);
  for (int64_t i = 0; i < std::min(pictures, options.max_pictures); ++i) {
    const int64_t b = i / grid.heads();
    const int64_t h = i % grid.heads();
    text += fmt::format("({}, {})\n", b, h);
    for (int64_t row = 0; row < grid.rows(); row += step) {
      const Span rows{row, std::min(row + step, grid.rows())};
      for (int64_t column = 0; column < grid.columns(); column += step) {
        text += draw(grid, b, h, rows, {column, std::min(column + step, grid.columns())});
      }
      text += "\n";
    }
  }
  if (pictures > options.max_pictures) {
    text += fmt::format("and {} more\n", pictures - options.max_pictures);
  }
  return text;
}

}  // namespace stagecraft
