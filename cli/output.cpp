#include "cli/output.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "cli/failure.h"
#include "stagecraft/base/write_file.h"

namespace stagecraft::cli {
namespace {

/// 0, or the errno of what went wrong.
int write_all(std::FILE* file, std::string_view text) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (written && std::fflush(file) == 0) return 0;
  return errno == 0 ? EIO : errno;
}

}  // namespace

void write_output(const std::string& path, std::string_view text) {
  if (path == "-") {
    const int error = write_all(stdout, text);
    if (error != 0 && error != EPIPE) {
      throw BadUsage(fmt::format("cannot write standard output: {}", std::strerror(error)));
    }
    return;
  }
  try {
    write_file(path, text);
  } catch (const Error& error) {
    throw BadUsage(error.what());
  }
}

std::optional<int32_t> terminal_columns() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

void print_error(std::string_view message) {
  std::string line = "stagecraft: ";
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      line += "; ";
    } else if (byte < 0x20 || byte == 0x7F) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

std::string format_number(double value) {
  if (!std::isfinite(value) || std::abs(value) >= 1e15) return fmt::format("{:g}", value);
  // Sums of decimal fractions miss whole numbers by a few last bits.
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

}  // namespace stagecraft::cli
