#include "stagecraft/partition/pipe.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/passes/move.h"
#include "stagecraft/graph/run/input_binding.h"
#include "stagecraft/graph/run/program.h"
#include "stagecraft/partition/flops.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/stage/stage_context.h"

namespace stagecraft {

namespace {

std::size_t at(StageId stage) {
  return stage.position();
}

/// The device of a graph: that of its states, otherwise that of its values.
c10::Device device_of(const Graph& graph) {
  const GraphParts& parts = graph.parts();
  if (!parts.states.empty()) return parts.states.front().tensor.device();
  return parts.values.empty() ? c10::Device(c10::kCPU) : parts.values[ValueId(0)].device;
}

std::string source_text(const StageSource& source) {
  if (const auto* argument = std::get_if<FromArgument>(&source)) {
    return fmt::format("args[{}]", argument->argument);
  }
  const auto& output = std::get<OutputPort>(source);
  return fmt::format("%{}.{}", Pipe::stage_name(output.stage), output.output);
}

std::string bytes_text(int64_t bytes) {
  if (bytes < 10 * 1024) return fmt::format("{} B", bytes);
  if (bytes < 10 * 1024 * 1024) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / 1024);
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1024 * 1024));
}

}  // namespace

Pipe::Pipe(Planned, Graph graph, PipePlan plan)
    : graph_(std::move(graph)),
      plan_(std::make_shared<const PipePlan>(std::move(plan))),
      ports_(std::make_shared<const Ports>(ports_of(plan_->stages))) {}

Pipe::Pipe(const Graph& graph, const Split& split, const Sharing& sharing)
    : Pipe(Planned(), graph, plan_stages(graph, find_split_positions(graph, split), sharing)) {}

Pipe Pipe::of_plan(Graph graph, PipePlan plan) {
  return {Planned(), std::move(graph), std::move(plan)};
}

const StagePlan& Pipe::plan(StageId stage) const {
  require<ArgumentError>(stage.value() >= 0 && stage.value() < num_stages(),
                         "expected a stage from 0 to {}, got {}", num_stages() - 1, stage.value());
  return plan_->stages[at(stage)];
}

StageBody Pipe::body_of(StageId stage, const Graph& graph) const {
  return bodies_ ? bodies_->body(stage, graph) : stage_body(graph);
}

Pipe Pipe::with_bodies(std::shared_ptr<const StageBodies> bodies) const {
  Pipe result = *this;
  result.bodies_ = std::move(bodies);
  return result;
}

Stage Pipe::build_stage(StageId stage, std::optional<c10::Device> device) const {
  const Graph& own = stage_graph(stage);
  const c10::Device where = device.value_or(device_of(own));
  return Stage(stage, num_stages(), body_of(stage, device ? move_to(own, where) : own),
               {.device = where});
}

Stage Pipe::build_stage(StageId stage, StageOptions options) const {
  const Graph& own = stage_graph(stage);
  options.device = device_of(own);
  return Stage(stage, num_stages(), body_of(stage, own), std::move(options));
}

std::vector<Stage> Pipe::build_stages(std::optional<c10::Device> device) const {
  const Pipe moved = device ? to(*device) : *this;
  std::vector<Stage> stages;
  for (int32_t i = 0; i < num_stages(); ++i) stages.push_back(moved.build_stage(StageId(i)));
  return stages;
}

Pipe Pipe::to(c10::Device device) const {
  return to(std::vector<Pipe>{*this}, device).front();
}

std::vector<Pipe> Pipe::to(const std::vector<Pipe>& pipes, c10::Device device) {
  MovedTensors moved;
  std::vector<Pipe> result;
  for (const Pipe& pipe : pipes) {
    PipePlan plan = *pipe.plan_;
    for (StagePlan& stage : plan.stages) stage.graph = move_to(stage.graph, device, moved);
    result.push_back(of_plan(move_to(pipe.graph_, device, moved), std::move(plan)));
    result.back().bodies_ = pipe.bodies_;
  }
  return result;
}

std::vector<at::Tensor> Pipe::parameters() const {
  std::vector<at::Tensor> result;
  for (const StagePlan& stage : plan_->stages) {
    for (const GraphState& state : stage.graph.parts().states) {
      if (state.kind == GraphState::Kind::kParameter) result.push_back(state.tensor);
    }
  }
  return result;
}

void Pipe::check_arguments(const Args& args, const Kwargs& kwargs) const {
  const InputBinding binding(graph_);
  const std::vector<int64_t> sizes = binding.sizes(binding.leaves(args, kwargs));
  if (bodies_) bodies_->check_sizes(graph_, sizes);
}

Arguments Pipe::arguments_of(StageId stage, const Args& args, const Kwargs& kwargs,
                             const std::vector<std::vector<c10::IValue>>& outputs) const {
  const StagePlan& own = plan(stage);
  Arguments result;
  for (const StageSource& source : own.sources) {
    if (const auto* argument = std::get_if<FromArgument>(&source)) {
      const auto number = static_cast<std::size_t>(argument->argument);
      require<MetadataError>(number < args.size(), "expected {} positional arguments, got {}",
                             graph_.parts().args.children().size(), args.size());
      result.args.push_back(args[number]);
    } else {
      const auto& output = std::get<OutputPort>(source);
      result.args.push_back(outputs[at(output.stage)][static_cast<std::size_t>(output.output)]);
    }
  }
  const TreeSpec& keywords = own.graph.parts().kwargs;
  for (std::size_t k = 0; k < keywords.children().size(); ++k) {
    const c10::IValue* value = kwargs.find(keywords.key(k));
    require<MetadataError>(value != nullptr, "expected an argument by name '{}', got none",
                           keywords.key(k));
    result.kwargs.set(keywords.key(k), *value);
  }
  return result;
}

c10::IValue Pipe::run(const Args& args, const Kwargs& kwargs, std::optional<uint64_t> draw) const {
  const RunOptions options = draw ? draw_by_name(*draw) : RunOptions();
  check_arguments(args, kwargs);
  std::vector<std::vector<c10::IValue>> outputs(plan_->stages.size());
  c10::IValue result;
  for (int32_t i = 0; i < num_stages(); ++i) {
    const Arguments mine = arguments_of(StageId(i), args, kwargs, outputs);
    result = GraphProgram(stage_graph(StageId(i))).run(mine.args, mine.kwargs, options);
    if (i + 1 < num_stages()) outputs[at(StageId(i))] = outputs_of(result);
  }
  return result;
}

std::vector<StageSummary> Pipe::summary() const {
  std::vector<StageSummary> result;
  for (int32_t i = 0; i < num_stages(); ++i) {
    const Graph& graph = stage_graph(StageId(i));
    StageSummary& stage = result.emplace_back();
    stage.name = stage_name(StageId(i));
    stage.operators = graph.parts().nodes.size();
    for (const GraphState& state : graph.parts().states) {
      if (state.kind != GraphState::Kind::kParameter) continue;
      stage.parameters += state.tensor.numel();
      stage.parameter_bytes += static_cast<int64_t>(state.tensor.nbytes());
    }
    for (const GraphNode& node : graph.parts().nodes) stage.flops += example_flops(graph, node);
    for (const Ports::Connection& connection : ports().connections()) {
      if (connection.from.stage != StageId(i)) continue;
      const Argument& output =
          graph.parts().outputs[static_cast<std::size_t>(connection.from.output)];
      stage.bytes_sent += output.value() != nullptr ? example_bytes(graph, *output.value())
                                                    : static_cast<int64_t>(sizeof(int64_t));
    }
  }
  return result;
}

std::string Pipe::table() const {
  std::string text = fmt::format("{:<16}{:>10}{:>14}{:>12}{:>14}{:>12}\n", "stage", "operators",
                                 "parameters", "bytes", "MFLOP", "sends");
  for (const StageSummary& stage : summary()) {
    text += fmt::format("{:<16}{:>10}{:>14}{:>12}{:>14.3f}{:>12}\n", stage.name, stage.operators,
                        stage.parameters, bytes_text(stage.parameter_bytes),
                        static_cast<double>(stage.flops) / 1e6, bytes_text(stage.bytes_sent));
  }
  return text;
}

std::string Pipe::call_text() const {
  std::string text;
  for (int32_t i = 0; i < num_stages(); ++i) {
    const StagePlan& stage = plan_->stages[at(StageId(i))];
    std::vector<std::string> arguments;
    for (const StageSource& source : stage.sources) arguments.push_back(source_text(source));
    const TreeSpec& keywords = stage.graph.parts().kwargs;
    for (std::size_t k = 0; k < keywords.children().size(); ++k) {
      arguments.push_back(fmt::format("{0}=kwargs[\"{0}\"]", keywords.key(k)));
    }
    std::vector<std::string> results;
    for (std::size_t o = 0; i + 1 < num_stages() && o < stage.graph.parts().outputs.size(); ++o) {
      results.push_back(fmt::format("%{}.{}", stage_name(StageId(i)), o));
    }
    const std::string call =
        fmt::format("{}({})", stage_name(StageId(i)), fmt::join(arguments, ", "));
    if (i + 1 == num_stages()) {
      text += "return ";
    } else if (!results.empty()) {
      text += fmt::format("{} = ", fmt::join(results, ", "));
    }
    text += call + "\n";
  }
  return text;
}

Pipe pipeline(const StageBody& model, const Arguments& example, const Split& split,
              const PipeOptions& options) {
  return Pipe(capture(model, example, options.capture), split, options.sharing);
}

// The hash FNV-1a: it is the same on every platform, and must never change.
uint64_t random_place(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

RunOptions draw_by_name(uint64_t draw) {
  return {.around_random = [draw](const GraphNode& node, const std::function<void()>& call) {
    const RandomScope scope(draw, random_place(node.name));
    call();
  }};
}

namespace {

// Whether all casts of weights have the same dtype and device and record gradients, and no trained
// tensor is changed.
bool can_share_casts(const GraphParts& parts) {
  std::optional<AutocastState> first;
  for (const GraphNode& node : parts.nodes) {
    if (!node.branches.empty()) return false;
    if (!node.autocast) continue;
    if (node.is_no_grad || !node.autocast->is_cached) return false;
    if (!first) first = node.autocast;
    if (node.autocast->device_type != first->device_type || node.autocast->dtype != first->dtype) {
      return false;
    }
  }
  return first && std::ranges::none_of(changed_states(parts), [](const at::Tensor& tensor) {
           return tensor.requires_grad();
         });
}

}  // namespace

StageBody stage_body(const Graph& graph) {
  StageBody body;
  body.shares_casts = can_share_casts(graph.parts());
  for (const GraphState& state : graph.parts().states) {
    if (state.kind == GraphState::Kind::kParameter) {
      body.parameters.emplace_back(graph.value(state.value).name, state.tensor);
    } else if (state.kind == GraphState::Kind::kBuffer) {
      body.buffers.emplace_back(graph.value(state.value).name, state.tensor);
    }
  }
  body.forward = [program = std::make_shared<const GraphProgram>(graph)](const Args& args,
                                                                         const Kwargs& kwargs) {
    const StageContext* context = current_stage();
    if (context == nullptr || !context->draw) return program->run(args, kwargs);
    return program->run(args, kwargs, draw_by_name(*context->draw));
  };
  return body;
}

}  // namespace stagecraft
