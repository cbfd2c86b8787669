#include "cli/model/units.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

namespace stagecraft::cli {
namespace {

constexpr std::size_t kLine = 100;

/// A number of at most four digits with the letter of its power of `base`.
std::string scaled(double number, double base, std::string_view letters, int digits) {
  std::size_t power = 0;
  // 999.96 would be shown as 1000.0, so the next letter is used.
  while (power + 1 < letters.size() && std::abs(number) >= base - 0.05) {
    number /= base;
    ++power;
  }
  const std::string text = fmt::format("{:.{}f}", number, power == 0 ? 0 : digits);
  return power == 0 ? text + ' ' : fmt::format("{} {}", text, letters[power]);
}

/// Whether the byte continues a character of several bytes.
bool is_inside_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

}  // namespace

std::string grouped(int64_t count) {
  const std::string digits = fmt::format("{}", count);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const bool is_start_of_group = i > 0 && (digits.size() - i) % 3 == 0 && digits[i - 1] != '-';
    if (is_start_of_group) text += ',';
    text += digits[i];
  }
  return text;
}

std::string short_count(int64_t count) {
  if (std::abs(count) < 10'000) return grouped(count);
  return scaled(static_cast<double>(count), 1000, " KMGTPE", 1);
}

std::string short_bytes(int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  return scaled(static_cast<double>(bytes), 1024, " KMGTPE", 1) + "iB";
}

std::string short_flops(int64_t flops) {
  return scaled(static_cast<double>(flops), 1000, " KMGTPE", 2) + "FLOP";
}

std::string percent_of(int64_t part, int64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.1f} %", 100 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string shown(std::string_view text, std::size_t most) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  if (line.size() <= most) return line;
  constexpr std::string_view kDots = "...";
  std::size_t head = (most - kDots.size()) / 2;
  std::size_t tail = line.size() - (most - kDots.size() - head);
  while (head > 0 && is_inside_character(line[head])) --head;
  while (tail < line.size() && is_inside_character(line[tail])) ++tail;
  return line.substr(0, head) + std::string(kDots) + line.substr(tail);
}

std::string wrapped(const std::vector<std::string>& words, std::size_t indent) {
  std::string text;
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty() && line.size() + 1 + word.size() > kLine) {
      text += line + '\n';
      line.clear();
    }
    line += (line.empty() ? std::string(indent, ' ') : " ") + word;
  }
  return line.empty() ? text : text + line + '\n';
}

}  // namespace stagecraft::cli
