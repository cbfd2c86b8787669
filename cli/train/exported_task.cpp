#include "cli/train/exported_task.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ones.h>

#include "cli/failure.h"
#include "cli/train/compiled_task.h"
#include "stagecraft/base/assert.h"
#include "stagecraft/exported/exported_archive.h"
#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/passes/evaluation.h"
#include "stagecraft/graph/passes/move.h"
#include "stagecraft/graph/run/input_binding.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft::cli {
namespace {

constexpr int64_t kBytes = 256;

/// The names of the leaves of the inputs, in their order; empty for a leaf that is not a tensor.
std::vector<std::string> input_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Argument& input : graph.parts().inputs) {
    names.push_back(input.value() == nullptr ? "" : graph.value(*input.value()).name);
  }
  return names;
}

/// The sizes that a dimension of an input may have.
struct Range {
  int64_t least = 1;
  int64_t greatest = std::numeric_limits<int64_t>::max();
};

Range range_of(const Graph& graph, const GraphValue& input, std::size_t dim) {
  const SizeExpr& size = input.shape[dim];
  if (size.is_number()) return {size.number(), size.number()};
  for (std::size_t i = 0; i < graph.parts().sizes.size(); ++i) {
    const GraphSize& each = graph.parts().sizes[i];
    if (size == SizeExpr::of_size(static_cast<int>(i))) {
      return {std::max<int64_t>(each.least, 1), each.greatest};
    }
  }
  return {};
}

class ExportedTask {
 public:
  ExportedTask(TrainCommand& command, const TrainingData& data, Graph graph)
      : command_(command), data_(data), graph_(std::move(graph)), names_(input_names(graph_)) {}

  /// Fills in everything except the pipes.
  void describe(Task& task) {
    for (const Argument& input : graph_.parts().inputs) {
      if (input.size() != nullptr) refuse("its forward takes a number that may vary");
    }
    if (data_.is_text()) {
      describe_text(task);
    } else {
      describe_tensors(task);
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw BadUsage(fmt::format("--model {}: {}", command_.model_file, why));
  }

  /// Describes the sizes that the model was made for. `of` is a text before the sizes: "rows of ".
  std::string made_for(const char* of, const Range& range) const {
    const std::string sizes = range.least == range.greatest
                                  ? fmt::format("{}{}", of, range.least)
                                  : fmt::format("{}{} to {}", of, range.least, range.greatest);
    if (!is_package(command_)) return fmt::format("the model was exported for {}", sizes);
    return fmt::format(
        "the package was compiled for {}; for other sizes, export the model with dynamic_shapes "
        "that allow them, and compile it without --fix (stagecraft compile)",
        sizes);
  }

  const GraphValue& input(std::size_t leaf) const {
    return graph_.value(*graph_.parts().inputs[leaf].value());
  }

  // Texts ----------------------------------------------------------------------------------------

  bool is_rows_of_ids(std::size_t leaf) const {
    return !names_[leaf].empty() && input(leaf).dtype == at::kLong && input(leaf).shape.size() == 2;
  }

  /// The value that a leaf of the inputs gets.
  enum class Role : uint8_t { kIds, kMask, kFixed };

  void describe_text(Task& task) {
    std::vector<Role> roles;
    std::vector<std::string> unknown;
    bool has_labels = false;
    std::size_t ids = names_.size();
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const bool is_labels = names_[i] == "labels";
      if (names_[i].empty()) {
        roles.push_back(Role::kFixed);
      } else if (names_[i] == "attention_mask" && input(i).shape.size() == 2) {
        roles.push_back(Role::kMask);
      } else if (is_rows_of_ids(i) && (is_labels || ids == names_.size())) {
        roles.push_back(Role::kIds);
        has_labels = has_labels || is_labels;
        if (!is_labels) ids = i;
      } else {
        unknown.push_back(names_[i]);
        roles.push_back(Role::kFixed);
      }
    }
    if (ids == names_.size()) {
      refuse(
          "to train on a text it must take token ids, int64[rows, length]; pass other data with "
          "--data");
    }
    if (!unknown.empty()) {
      refuse(
          fmt::format("its inputs {} cannot be made from a text; pass data with --data EXAMPLES.pt",
                      fmt::join(unknown, ", ")));
    }
    check_tokens(ids);
    fit_rows(ids, task);
    fit_length(ids, task);
    task.arguments = [graph = graph_, roles](const NamedTensors& rows) {
      const at::Tensor tokens = rows_named(rows, "ids");
      std::vector<c10::IValue> leaves;
      for (std::size_t i = 0; i < roles.size(); ++i) {
        const Argument& input = graph.parts().inputs[i];
        if (roles[i] == Role::kIds) {
          leaves.emplace_back(tokens);
        } else if (roles[i] == Role::kMask) {
          leaves.emplace_back(
              at::ones(tokens.sizes(), tokens.options().dtype(graph.value(*input.value()).dtype)));
        } else {
          leaves.push_back(*input.fixed_value());
        }
      }
      return arguments_of_leaves(graph, std::move(leaves));
    };
    find_logits(task);
    if (has_labels) {
      take_loss(task);
      return;
    }
    if (!task.logits) refuse("its output has neither logits [rows, length, tokens] nor a loss");
    task.target = [](const NamedTensors& rows) { return rows_named(rows, "targets"); };
    task.loss = Loss([logits = task.logits](const c10::IValue& output, const c10::IValue& target,
                                            const Kwargs&) {
      return c10::IValue(at::cross_entropy_loss(logits(output).flatten(0, 1).to(at::kFloat),
                                                target.toTensor().flatten()));
    });
  }

  // A model with fewer tokens than there are bytes would read beyond its embedding.
  void check_tokens(std::size_t ids) const {
    const ValueId tokens = *graph_.parts().inputs[ids].value();
    for (const GraphNode& node : graph_.parts().nodes) {
      if (node.op.name != "aten::embedding" || node.arguments[1].value() == nullptr ||
          node.arguments[0].value() == nullptr) {
        continue;
      }
      // The ids themselves, or a view of them.
      const ValueId index = *node.arguments[1].value();
      const int32_t memory = graph_.value(tokens).memory;
      const bool is_ids = index == tokens || (memory >= 0 && graph_.value(index).memory == memory);
      if (!is_ids) continue;
      const SizeExpr& size = graph_.value(*node.arguments[0].value()).shape[0];
      if (size.is_number() && size.number() < kBytes) {
        refuse(fmt::format("it has {} tokens, but a text has {} different bytes", size.number(),
                           kBytes));
      }
    }
  }

  void fit_length(std::size_t ids, Task& task) {
    const Range range = range_of(graph_, input(ids), 1);
    int64_t& context = command_.model.context;
    if (!command_.given.contains("--context")) {
      context = std::clamp(context, range.least, range.greatest);
    }
    if (context < range.least || context > range.greatest) {
      refuse(fmt::format("--context {}: {}", context, made_for("rows of ", range)));
    }
    task.least_length = range.least;
    is_one_size_ = is_one_size_ || range.least == range.greatest;
  }

  // Checks that the microbatches have a number of rows that the model takes.
  void fit_rows(std::size_t leaf, Task& task) {
    const Range range = range_of(graph_, input(leaf), 0);
    const int64_t parts = command_.parts();
    if (range.least == range.greatest && !command_.given.contains("--batch")) {
      command_.batch = static_cast<int32_t>(range.least * parts);
    }
    const int64_t fewest = command_.batch / parts;
    const int64_t most = (command_.batch + parts - 1) / parts;
    if (fewest < range.least || most > range.greatest) {
      refuse(fmt::format(
          "--batch {} in {} microbatches gives {} rows each, but {}", command_.batch, parts,
          fewest == most ? fmt::format("{}", most) : fmt::format("{} or {}", fewest, most),
          made_for("", range)));
    }
    task.least_rows = range.least;
    is_one_size_ = range.least == range.greatest;
  }

  // Outputs --------------------------------------------------------------------------------------

  std::size_t count_leaves() const { return graph_.parts().output.num_leaves(); }

  /// The number of the leaf under a key of the output; -1 without one.
  std::ptrdiff_t leaf_of(const std::string& key) const {
    const TreeSpec& output = graph_.parts().output;
    if (output.kind() != TreeSpec::Kind::kDict) return -1;
    std::ptrdiff_t leaf = 0;
    for (std::size_t i = 0; i < output.children().size(); ++i) {
      if (output.key(i) == key && output.children()[i].is_leaf()) return leaf;
      leaf += static_cast<std::ptrdiff_t>(output.children()[i].num_leaves());
    }
    return -1;
  }

  std::size_t dims_of(std::ptrdiff_t leaf) const {
    const ValueId* value = graph_.parts().outputs[static_cast<std::size_t>(leaf)].value();
    return value == nullptr ? SIZE_MAX : graph_.value(*value).shape.size();
  }

  static at::Tensor leaf_at(const c10::IValue& output, std::ptrdiff_t leaf) {
    return tree::flatten(output).leaves.at(static_cast<std::size_t>(leaf)).toTensor();
  }

  void find_logits(Task& task) const {
    std::ptrdiff_t leaf = leaf_of("logits");
    for (std::size_t i = 0; leaf < 0 && i < count_leaves(); ++i) {
      if (dims_of(static_cast<std::ptrdiff_t>(i)) == 3) leaf = static_cast<std::ptrdiff_t>(i);
    }
    if (leaf < 0 || dims_of(leaf) != 3) return;
    task.logits = [leaf](const c10::IValue& output) { return leaf_at(output, leaf); };
    // A sample needs rows of growing length.
    task.can_sample = !is_one_size_;
  }

  void take_loss(Task& task) const {
    std::ptrdiff_t leaf = leaf_of("loss");
    if (leaf < 0 && count_leaves() > 0 && dims_of(0) == 0) leaf = 0;
    if (leaf < 0 || dims_of(leaf) != 0) {
      refuse(
          "its output has no loss: expected a scalar named \"loss\", or a scalar as the first "
          "output");
    }
    task.target = [](const NamedTensors&) { return c10::IValue(); };
    task.loss = Loss([leaf](const c10::IValue& output, const c10::IValue&, const Kwargs&) {
      return c10::IValue(leaf_at(output, leaf));
    });
  }

  // Examples as tensors ---------------------------------------------------------------------------

  void describe_tensors(Task& task) {
    std::map<std::string, at::Tensor> examples;
    for (const auto& [name, tensor] : data_.examples()) examples.emplace(name, tensor);
    std::size_t used = 0;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (names_[i].empty()) continue;
      const auto found = examples.find(names_[i]);
      if (found == examples.end()) {
        refuse(fmt::format("--data has no tensor {}; the model takes {}", names_[i], taken()));
      }
      ++used;
      if (input(i).shape.empty()) refuse(fmt::format("its input {} has no rows", names_[i]));
      if (used == 1) fit_rows(i, task);
    }
    if (used < examples.size()) {
      refuse(fmt::format("--data has {} tensors; the model takes {}", examples.size(), taken()));
    }
    task.arguments = [graph = graph_, names = names_](const NamedTensors& rows) {
      std::vector<c10::IValue> leaves;
      for (std::size_t i = 0; i < names.size(); ++i) {
        leaves.push_back(names[i].empty() ? *graph.parts().inputs[i].fixed_value()
                                          : c10::IValue(rows_named(rows, names[i])));
      }
      return arguments_of_leaves(graph, std::move(leaves));
    };
    check_examples(task);
    take_loss(task);
  }

  // Finds out before training whether the model takes such rows.
  void check_examples(const Task& task) const {
    const int64_t parts = command_.parts();
    NamedTensors rows = data_.examples();
    for (auto& [name, tensor] : rows) {
      const at::Tensor some = at::arange(command_.batch / parts).remainder_(tensor.size(0));
      tensor = tensor.index_select(0, some);
    }
    const Arguments arguments = task.arguments(rows);
    const InputBinding binding(graph_);
    try {
      binding.sizes(binding.leaves(arguments.args, arguments.kwargs));
    } catch (const MetadataError& error) {
      refuse(fmt::format("--data does not fit: {}", error.what()));
    }
  }

  std::string taken() const {
    std::vector<std::string> tensors;
    for (const std::string& name : names_) {
      if (!name.empty()) tensors.push_back(name);
    }
    return fmt::format("{}", fmt::join(tensors, ", "));
  }

  TrainCommand& command_;
  const TrainingData& data_;
  Graph graph_;
  std::vector<std::string> names_;
  bool is_one_size_ = false;
};

/// The graph with autocast around the whole model: operators that gain by it compute in bfloat16.
Graph under_autocast(const Graph& graph, c10::DeviceType device) {
  GraphParts parts = graph.parts();
  for (GraphNode& node : parts.nodes) {
    if (!node.autocast) node.autocast = AutocastState{.device_type = device};
  }
  return Graph(std::move(parts));
}

}  // namespace

const at::Tensor& rows_named(const NamedTensors& rows, const std::string& name) {
  const auto found = std::ranges::find(rows, name, &NamedTensors::value_type::first);
  SC_ASSERT(found != rows.end());
  return found->second;
}

Task make_exported_task(TrainCommand& command, const TrainingData& data, const Split& split,
                        c10::Device device) {
  Graph graph = ExportedArchive(command.model_file).graph(command.program);
  if (!device.is_cpu()) graph = move_to(graph, device);
  if (command.bf16) graph = under_autocast(graph, device.type());
  const Sharing sharing{.by_default = SharedParameter::kTransmit};
  Task task{.pipe = Pipe(graph, split, sharing),
            .evaluation = Pipe(for_evaluation(graph), split, sharing),
            .arguments = {},
            .target = {},
            .loss = {}};
  describe_exported_task(command, data, graph, task);
  return task;
}

void describe_exported_task(TrainCommand& command, const TrainingData& data, const Graph& graph,
                            Task& task) {
  ExportedTask(command, data, graph).describe(task);
}

}  // namespace stagecraft::cli
