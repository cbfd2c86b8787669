#include "cli/model/stages_text.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/model/units.h"
#include "cli/output.h"

namespace stagecraft::cli {
namespace {

constexpr std::size_t kWidestName = 80;

std::string indented(const std::string& lines) {
  std::string text = "  ";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    text += lines[i];
    if (lines[i] == '\n' && i + 1 < lines.size()) text += "  ";
  }
  return text;
}

/// The name of the module, or of the node if --split cannot name the position.
std::string place_text(const std::string& name, const std::string& node) {
  if (name.empty()) return fmt::format("node {}", shown(node, kWidestName));
  return shown(name, kWidestName);
}

std::string where(const std::string& module) {
  return module.empty() ? "(the model)" : shown(module, kWidestName);
}

/// "layers.0 to layers.3" for parts in a row.
std::vector<std::string> part_names(const std::vector<StagePart>& parts) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const StagePart& part = parts[i];
    if (!part.is_whole) {
      names.push_back(fmt::format("{} of {}", format_count(part.operators, "operator"),
                                  part.name.empty() ? "the model itself" : shown(part.name)));
      continue;
    }
    auto number_of = [&](std::size_t at) {
      int64_t number = -1;
      const std::string_view last = last_part(parts[at].name);
      std::from_chars(last.data(), last.data() + last.size(), number);
      return number;
    };
    auto goes_on = [&](std::size_t at) {
      return at + 1 < parts.size() && parts[at + 1].is_whole && is_numbered(parts[at].name) &&
             is_numbered(parts[at + 1].name) &&
             parent_part(parts[at].name) == parent_part(parts[at + 1].name) &&
             number_of(at) + 1 == number_of(at + 1);
    };
    std::size_t last = i;
    while (goes_on(last)) ++last;
    const std::string name = part.name.empty() ? "the model" : shown(part.name);
    names.push_back(last < i + 2 ? name
                                 : fmt::format("{} to {}", name, last_part(parts[last].name)));
    if (last >= i + 2) i = last;
  }
  return names;
}

std::string stages_table(const ProgramView& view, const SplitFacts& split) {
  TextTable table({"stage", "begins at", "operators", "parameters", "bytes", "FLOP", "", "sends"},
                  2);
  for (std::size_t s = 0; s < split.stages.size(); ++s) {
    const StageFacts& stage = split.stages[s];
    const StageSummary& summary = stage.summary;
    table.add({fmt::format("{}", s), s == 0 ? "-" : place_text(stage.begins, stage.node),
               grouped(static_cast<int64_t>(summary.operators)), short_count(summary.parameters),
               short_bytes(summary.parameter_bytes), short_count(summary.flops),
               percent_of(summary.flops, view.costs.total_flops), short_bytes(summary.bytes_sent)});
  }
  return indented(table.to_string());
}

std::string at_modules_text(const ProgramView& view, const ModuleSplit& split) {
  return fmt::format(
      "  Between modules: --split {}\n    at most {} of the FLOP in a stage, {} across a "
      "boundary\n",
      fmt::join(split.names, ","), percent_of(split.flops, view.costs.total_flops),
      short_bytes(split.bytes));
}

std::string crossing_text(std::size_t number, const StageFacts& stage) {
  int64_t bytes = 0;
  for (const CrossingFacts& value : stage.receives) bytes += value.bytes;
  std::string text = fmt::format(
      "  Boundary before stage {}: {}, {}\n", number,
      format_count(static_cast<long long>(stage.receives.size()), "value"), short_bytes(bytes));
  if (stage.receives.empty()) return text;
  TextTable table({"value", "type", "from stage", "to", "bytes"}, 4);
  for (const CrossingFacts& value : stage.receives) {
    table.add({shown(value.name, kWidestName), shown(value.type), fmt::format("{}", value.from),
               fmt::format("{}", fmt::join(value.to, ", ")), short_bytes(value.bytes)});
  }
  return text + indented(indented(table.to_string()));
}

std::string details(const SplitFacts& split) {
  std::string text;
  for (std::size_t s = 0; s < split.stages.size(); ++s) {
    std::vector<std::string> words = part_names(split.stages[s].parts);
    for (std::size_t i = 0; i + 1 < words.size(); ++i) words[i] += ",";
    text += fmt::format("\n  Stage {} runs\n{}", s, wrapped(words, 4));
  }
  for (std::size_t s = 1; s < split.stages.size(); ++s) {
    text += '\n' + crossing_text(s, split.stages[s]);
  }
  for (const TiedWeight& tie : split.ties) {
    std::vector<std::string> copies;
    for (const ParameterRef& copy : tie) {
      copies.push_back(fmt::format("stage {} as {}", copy.stage.value(), shown(copy.name)));
    }
    text += fmt::format("\n  One weight in several stages, which share its gradient: {}\n",
                        fmt::join(copies, ", "));
  }
  return text;
}

}  // namespace

std::string boundaries_text(const ProgramView& view, std::size_t depth) {
  const bool is_every = depth == SIZE_MAX;
  std::vector<std::string> header = {"  a stage can begin at", "bytes across", "FLOP before",
                                     "parameters before"};
  if (is_every) header.insert(header.begin() + 1, {"node", "of module"});
  TextTable table(header, is_every ? 3 : 1);
  std::size_t legal = 0;
  std::size_t listed = 0;
  for (const Boundary& boundary : view.boundaries) {
    if (!boundary.is_legal()) continue;
    ++legal;
    const std::string name = boundary.names.empty() ? "" : boundary.names.front();
    if (!is_every && !boundary.begins_module(depth)) continue;
    ++listed;
    std::vector<std::string> row = {
        "  " + (name.empty() ? "-" : shown(name, kWidestName)), short_bytes(boundary.bytes),
        percent_of(boundary.flops_before, view.costs.total_flops),
        percent_of(boundary.parameters_before, view.costs.total_parameters)};
    if (is_every) {
      row.insert(row.begin() + 1, {fmt::format("{} {}", boundary.position, shown(boundary.node)),
                                   where(boundary.module)});
    }
    table.add(std::move(row));
  }
  const std::size_t refused = view.boundaries.size() - legal;
  std::string text = "Boundaries\n";
  if (listed > 0) text += table.to_string();
  if (listed < legal) {
    text += fmt::format("  {} in all; --boundaries shows them\n",
                        format_count(static_cast<long long>(legal), "position"));
  }
  if (refused > 0) {
    text += fmt::format("  {} cannot be split; --refused says why\n",
                        format_count(static_cast<long long>(refused), "position"));
  }
  if (view.boundaries.empty()) text += "  none: there are no two operators\n";
  return text + '\n';
}

std::string refused_text(const ProgramView& view) {
  TextTable table({"  before node", "of module", "why not"}, 3);
  bool has_any = false;
  for (const Boundary& boundary : view.boundaries) {
    if (boundary.is_legal()) continue;
    has_any = true;
    table.add({fmt::format("  {} {}", boundary.position, shown(boundary.node)),
               where(boundary.module), shown(boundary.why_not, 120)});
  }
  return "Positions that cannot be split\n" + (has_any ? table.to_string() : "  none\n") + '\n';
}

std::string splits_text(const ProgramView& view, bool is_whole) {
  std::string text;
  for (const SplitFacts& split : view.splits) {
    const auto count = static_cast<long long>(split.stages.size());
    text += is_whole ? format_count(count, "stage")
                     : fmt::format("Best split into {}", format_count(count, "stage"));
    if (split.split) text += fmt::format(": --split {}", *split.split);
    if (!split.split && count > 1) text += ", not all at modules";
    text += '\n' + stages_table(view, split);
    if (split.at_modules) text += at_modules_text(view, *split.at_modules);
    if (is_whole) text += details(split);
    text += '\n';
  }
  return text;
}

}  // namespace stagecraft::cli
