#include "cli/model/cut_text.h"

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

/// The module, or the node where no --split says it.
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

std::string stages_table(const ProgramView& view, const CutFacts& cut) {
  TextTable table({"stage", "begins at", "operators", "parameters", "bytes", "FLOP", "", "sends"},
                  2);
  for (std::size_t s = 0; s < cut.stages.size(); ++s) {
    const StageFacts& stage = cut.stages[s];
    const StageSummary& summary = stage.summary;
    table.add({fmt::format("{}", s), s == 0 ? "-" : place_text(stage.begins, stage.node),
               grouped(static_cast<int64_t>(summary.operators)), short_count(summary.parameters),
               short_bytes(summary.parameter_bytes), short_count(summary.flops),
               percent_of(summary.flops, view.costs.total_flops), short_bytes(summary.bytes_sent)});
  }
  return indented(table.to_string());
}

std::string at_modules_text(const ProgramView& view, const ModuleSplit& cut) {
  return fmt::format(
      "  Between modules: --split {}\n    at most {} of the FLOP in a stage, {} across a border\n",
      fmt::join(cut.names, ","), percent_of(cut.flops, view.costs.total_flops),
      short_bytes(cut.bytes));
}

std::string crossing_text(std::size_t number, const StageFacts& stage) {
  int64_t bytes = 0;
  for (const CrossingFacts& value : stage.receives) bytes += value.bytes;
  std::string text = fmt::format(
      "  Border before stage {}: {}, {}\n", number,
      format_count(static_cast<long long>(stage.receives.size()), "value"), short_bytes(bytes));
  if (stage.receives.empty()) return text;
  TextTable table({"value", "type", "from stage", "to", "bytes"}, 4);
  for (const CrossingFacts& value : stage.receives) {
    table.add({shown(value.name, kWidestName), shown(value.type), fmt::format("{}", value.from),
               fmt::format("{}", fmt::join(value.to, ", ")), short_bytes(value.bytes)});
  }
  return text + indented(indented(table.to_string()));
}

std::string details(const CutFacts& cut) {
  std::string text;
  for (std::size_t s = 0; s < cut.stages.size(); ++s) {
    std::vector<std::string> words = part_names(cut.stages[s].parts);
    for (std::size_t i = 0; i + 1 < words.size(); ++i) words[i] += ",";
    text += fmt::format("\n  Stage {} runs\n{}", s, wrapped(words, 4));
  }
  for (std::size_t s = 1; s < cut.stages.size(); ++s) {
    text += '\n' + crossing_text(s, cut.stages[s]);
  }
  for (const TiedWeight& tie : cut.ties) {
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

std::string borders_text(const ProgramView& view, std::size_t depth) {
  const bool is_every = depth == SIZE_MAX;
  std::vector<std::string> header = {"  a stage can begin at", "bytes across", "FLOP before",
                                     "parameters before"};
  if (is_every) header.insert(header.begin() + 1, {"node", "of module"});
  TextTable table(header, is_every ? 3 : 1);
  std::size_t legal = 0;
  std::size_t listed = 0;
  for (const Boundary& border : view.borders) {
    if (!border.is_legal()) continue;
    ++legal;
    const std::string name = border.names.empty() ? "" : border.names.front();
    if (!is_every && !border.begins_module(depth)) continue;
    ++listed;
    std::vector<std::string> row = {
        "  " + (name.empty() ? "-" : shown(name, kWidestName)), short_bytes(border.bytes),
        percent_of(border.flops_before, view.costs.total_flops),
        percent_of(border.parameters_before, view.costs.total_parameters)};
    if (is_every) {
      row.insert(row.begin() + 1,
                 {fmt::format("{} {}", border.position, shown(border.node)), where(border.module)});
    }
    table.add(std::move(row));
  }
  const std::size_t refused = view.borders.size() - legal;
  std::string text = "Borders\n";
  if (listed > 0) text += table.to_string();
  if (listed < legal) {
    text += fmt::format("  {} in all; --borders shows them\n",
                        format_count(static_cast<long long>(legal), "place"));
  }
  if (refused > 0) {
    text += fmt::format("  {} cannot be cut; --refused says why\n",
                        format_count(static_cast<long long>(refused), "place"));
  }
  if (view.borders.empty()) text += "  none: there are no two operators\n";
  return text + '\n';
}

std::string refused_text(const ProgramView& view) {
  TextTable table({"  before node", "of module", "why not"}, 3);
  bool has_any = false;
  for (const Boundary& border : view.borders) {
    if (border.is_legal()) continue;
    has_any = true;
    table.add({fmt::format("  {} {}", border.position, shown(border.node)), where(border.module),
               shown(border.why_not, 120)});
  }
  return "Places that cannot be cut\n" + (has_any ? table.to_string() : "  none\n") + '\n';
}

std::string cuts_text(const ProgramView& view, bool is_whole) {
  std::string text;
  for (const CutFacts& cut : view.cuts) {
    const auto count = static_cast<long long>(cut.stages.size());
    text += is_whole ? format_count(count, "stage")
                     : fmt::format("Best cut into {}", format_count(count, "stage"));
    if (cut.split) text += fmt::format(": --split {}", *cut.split);
    if (!cut.split && count > 1) text += ", not all at modules";
    text += '\n' + stages_table(view, cut);
    if (cut.at_modules) text += at_modules_text(view, *cut.at_modules);
    if (is_whole) text += details(cut);
    text += '\n';
  }
  return text;
}

}  // namespace stagecraft::cli
