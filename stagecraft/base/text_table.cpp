#include "stagecraft/base/text_table.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace stagecraft {

std::string format_number(double value) {
  if (!std::isfinite(value) || std::abs(value) >= 1e15) return fmt::format("{:g}", value);
  // Rounding errors put sums of decimal fractions a few bits beside the integer.
  const double whole = std::round(value);
  if (std::abs(value - whole) <= 1e-9 * std::max(1.0, std::abs(value))) {
    return fmt::format("{:.0f}", whole == 0 ? 0.0 : whole);
  }
  const int before_point = static_cast<int>(std::floor(std::log10(std::abs(value)))) + 1;
  std::string text = fmt::format("{:.{}f}", value, std::clamp(6 - before_point, 1, 12));
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string format_percent(double share) {
  return fmt::format("{:.2f} %", 100 * share);
}

std::string format_count(long long count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

TextTable::TextTable(std::vector<std::string> header, std::size_t text_columns)
    : rows_{std::move(header)}, text_columns_(text_columns) {}

void TextTable::add(std::vector<std::string> row) {
  rows_.push_back(std::move(row));
}

std::string TextTable::to_string() const {
  std::vector<std::size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      line += i < text_columns_ ? fmt::format("{:<{}}", row[i], widths[i])
                                : fmt::format("{:>{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

}  // namespace stagecraft
