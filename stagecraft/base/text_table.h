#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft {

/// A number for people to read: 1456749, 0.25, 3.14159. Up to six significant digits, and no
/// exponent below 10^15. A value within 10^-9 of an integer is written as that integer.
std::string format_number(double value);
/// 0.2258 as "22.58 %".
std::string format_percent(double share);

/// "1 rank", "2 ranks".
std::string format_count(long long count, std::string_view noun);

/// A table with a header. Text columns are aligned to the left, all others to the right.
class TextTable {
 public:
  /// `text_columns`: the number of columns, from the left, that hold text.
  explicit TextTable(std::vector<std::string> header, std::size_t text_columns = 0);

  void add(std::vector<std::string> row);
  std::string to_string() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::size_t text_columns_;
};

}  // namespace stagecraft
