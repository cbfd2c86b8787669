#include "stagecraft/schedule/table.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace stagecraft {

std::string to_table(const Schedule& schedule) {
  std::vector<std::vector<std::string>> columns;
  std::vector<std::size_t> widths;
  std::size_t steps = 0;
  for (int32_t r = 0; r < schedule.num_ranks(); ++r) {
    std::vector<std::string>& column = columns.emplace_back();
    std::size_t width = widths.emplace_back(fmt::format("rank {}", r).size());
    for (const Slot& slot : schedule.slots(Rank(r))) {
      column.push_back(slot.is_idle() ? "." : to_string(slot));
      width = std::max(width, column.back().size());
    }
    widths.back() = width;
    steps = std::max(steps, column.size());
  }

  const std::size_t first = std::max<std::size_t>(4, std::to_string(steps).size());
  std::string table;
  const auto add_line = [&](const std::string& head, auto&& cell) {
    std::string line = fmt::format("{:>{}}", head, first);
    for (std::size_t r = 0; r < columns.size(); ++r) {
      line += fmt::format("  {:<{}}", cell(r), widths[r]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    table += line + '\n';
  };
  add_line("step", [](std::size_t r) { return fmt::format("rank {}", r); });
  for (std::size_t step = 0; step < steps; ++step) {
    add_line(std::to_string(step), [&](std::size_t r) {
      return step < columns[r].size() ? columns[r][step] : std::string();
    });
  }
  return table;
}

}  // namespace stagecraft
