#include "cli/model/text.h"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/model/module_text.h"
#include "cli/model/stages_text.h"
#include "cli/model/units.h"
#include "cli/output.h"

namespace stagecraft::cli {
namespace {

/// The longest line. The middle of a longer one is left out.
constexpr std::size_t kWidestLine = 96;

std::string leaf_text(const LeafFacts& leaf) {
  switch (leaf.kind) {
    case LeafFacts::Kind::kTensor:
      return fmt::format("{}[{}]", leaf.dtype, fmt::join(leaf.shape, ", "));
    case LeafFacts::Kind::kNumber:
      return fmt::format("int {}", leaf.value);
    case LeafFacts::Kind::kFixed:
      break;
  }
  return fmt::format("always {}", leaf.value);
}

std::string leaves_text(std::string_view title, const std::vector<LeafFacts>& leaves) {
  if (leaves.empty()) return fmt::format("{}\n  none\n\n", title);
  TextTable table({std::string(title), "", ""}, 3);
  for (const LeafFacts& leaf : leaves) {
    const bool has_sizes = leaf.kind == LeafFacts::Kind::kTensor &&
                           std::ranges::any_of(leaf.shape, [](const std::string& size) {
                             return size.find_first_not_of("0123456789") != std::string::npos;
                           });
    table.add({"  " + shown(leaf.path), shown(leaf_text(leaf)),
               has_sizes ? fmt::format("example: [{}]", fmt::join(leaf.example, ", ")) : ""});
  }
  return table.to_string() + '\n';
}

std::string range_text(const SizeFacts& size) {
  if (!size.follows.empty()) return "= " + size.follows;
  if (size.greatest) return fmt::format("{} to {}", *size.least, *size.greatest);
  return fmt::format("at least {}", *size.least);
}

std::string sizes_text(const std::vector<SizeFacts>& sizes) {
  TextTable table({"Sizes", "example", "range"}, 3);
  bool has_any = false;
  for (const SizeFacts& size : sizes) {
    if (!size.is_visible) continue;
    has_any = true;
    table.add({"  " + shown(size.name), fmt::format("{}", size.example),
               shown(range_text(size), kWidestLine)});
  }
  return has_any ? table.to_string() + '\n' : std::string();
}

std::string lines_text(std::string_view title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string text = fmt::format("{}\n", title);
  for (const std::string& line : lines) text += fmt::format("  {}\n", shown(line, 3 * kWidestLine));
  return text + '\n';
}

std::string holds_text(const ModelFacts& facts) {
  TextTable table({"Holds", "tensors", "elements", "bytes"}, 1);
  auto add = [&](std::string_view what, const TensorsFacts& group) {
    table.add({fmt::format("  {}", what), grouped(group.tensors), grouped(group.elements),
               short_bytes(group.bytes)});
  };
  const bool is_mixed = facts.frozen.tensors > 0 && facts.trained.tensors > 0;
  add(is_mixed || facts.parameters().tensors == 0 ? "parameters"
      : facts.frozen.tensors > 0                  ? "parameters, all frozen"
                                                  : "parameters, all trained",
      facts.parameters());
  if (is_mixed) {
    add("  trained", facts.trained);
    add("  frozen", facts.frozen);
  }
  if (facts.buffers.tensors > 0) add("buffers", facts.buffers);
  if (facts.constants.tensors > 0) add("constants", facts.constants);
  std::string text = table.to_string() + '\n';
  if (facts.tied.empty()) return text;
  text += "Tied: one tensor under several names\n";
  for (const std::vector<std::string>& names : facts.tied) {
    std::vector<std::string> words;
    for (const std::string& name : names) {
      words.push_back((words.empty() ? "" : "= ") + shown(name, kWidestLine));
    }
    text += wrapped(words, 2);
  }
  return text + '\n';
}

std::string headline(const ModelCommand& command, const std::vector<std::string>& programs,
                     const ProgramView& view) {
  std::string text = fmt::format("{}: ", shown(command.file, kWidestLine));
  text += programs.size() == 1 ? fmt::format("program {}", shown(view.name))
                               : fmt::format("program {} of {}", shown(view.name), programs.size());
  text += fmt::format(", exported with torch {}\n", shown(view.torch_version));
  text +=
      fmt::format("{}, {}, {} a forward at the sizes of the example\n\n",
                  format_count(static_cast<long long>(view.graph.parts().nodes.size()), "operator"),
                  short_count(view.costs.total_parameters) + " parameters",
                  short_flops(view.costs.total_flops));
  return text + lines_text("Warnings", view.warnings);
}

}  // namespace

std::string view_text(const ModelCommand& command, const std::vector<std::string>& programs,
                      const ProgramView& view) {
  const bool is_about_splits = command.split || command.stages;
  const bool is_part = is_about_splits || command.has_boundaries || command.has_refused;
  const bool is_whole = command.is_all || !is_part;
  std::string text = headline(command, programs, view);
  const std::size_t depth = command.is_all  ? SIZE_MAX
                            : command.depth ? static_cast<std::size_t>(*command.depth)
                                            : view.layer_depth;
  if (is_whole) {
    text += leaves_text("Inputs", view.facts.inputs);
    text += leaves_text("Outputs", view.facts.outputs);
    text += sizes_text(view.facts.sizes);
    text += lines_text("Conditions on inputs", view.facts.conditions);
    text += holds_text(view.facts);
  }
  if (is_whole || command.depth) text += modules_text(view, depth, command.is_all);
  if (is_whole || command.has_boundaries) {
    text += boundaries_text(view, command.is_all || command.has_boundaries ? SIZE_MAX : depth);
  }
  if (command.is_all || command.has_refused) text += refused_text(view);
  if (is_whole || is_about_splits) text += splits_text(view, is_about_splits);
  text += lines_text("Cannot be split", view.not_split);
  text.pop_back();  // the empty line after the last section
  return text;
}

std::string list_text(const std::string& file, const std::vector<ProgramView>& views) {
  std::string text = fmt::format("{}: {} programs; --program NAME shows one\n\n",
                                 shown(file, kWidestLine), views.size());
  TextTable table({"program", "inputs", "outputs", "operators", "parameters", "FLOP"}, 1);
  for (const ProgramView& view : views) {
    table.add({shown(view.name), grouped(static_cast<int64_t>(view.facts.inputs.size())),
               grouped(static_cast<int64_t>(view.facts.outputs.size())),
               grouped(static_cast<int64_t>(view.graph.parts().nodes.size())),
               short_count(view.costs.total_parameters), short_count(view.costs.total_flops)});
  }
  return text + table.to_string();
}

}  // namespace stagecraft::cli
