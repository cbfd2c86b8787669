#include "cli/plan_search.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "cli/failure.h"
#include "stagecraft/base/text_cursor.h"

namespace stagecraft::cli {
namespace {

std::vector<double> parse_amounts(const std::string& option, const std::string& text, bool& bytes) {
  std::vector<double> amounts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, comma - begin);
    const Quantity memory = read_quantity(option, part);
    if (memory.kind == QuantityKind::kTime || memory.value <= 0) {
      throw BadUsage(
          fmt::format("{} takes an amount of memory above 0, got {}", option, quote(part)));
    }
    bytes = bytes || memory.kind == QuantityKind::kMemory;
    amounts.push_back(memory.value);
    if (comma == text.size()) return amounts;
    begin = comma + 1;
  }
}

}  // namespace

Quantity read_quantity(const std::string& option, const std::string& text) {
  try {
    return parse_quantity(text);
  } catch (const ArgumentError& error) {
    throw BadUsage(fmt::format("{}: {}", option, error.what()));
  }
}

void set_memory(std::vector<PlanRank>& ranks, const std::string& text, bool& bytes) {
  const std::vector<double> memory = parse_amounts("--memory", text, bytes);
  if (memory.size() != 1 && memory.size() != ranks.size()) {
    throw BadUsage(fmt::format("--memory has {} amounts for {} ranks: give one, or one for each",
                               memory.size(), ranks.size()));
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].memory = memory.size() == 1 ? memory.front() : memory[r];
  }
}

std::chrono::nanoseconds parse_time_limit(const std::string& option, const std::string& text) {
  const Quantity limit = read_quantity(option, text);
  double seconds = limit.value;
  if (limit.kind == QuantityKind::kMemory || !(seconds > 0)) {
    throw BadUsage(
        fmt::format("{} takes a time above 0, such as 5s or 500ms, got {}", option, quote(text)));
  }
  if (limit.unit == "ms") seconds *= 1e-3;
  if (limit.unit == "us") seconds *= 1e-6;
  if (limit.unit == "ns") seconds *= 1e-9;
  return std::chrono::nanoseconds(static_cast<int64_t>(1e9 * std::min(seconds, 1e8)));
}

}  // namespace stagecraft::cli
