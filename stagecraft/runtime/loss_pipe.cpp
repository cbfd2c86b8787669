#include "stagecraft/runtime/loss_pipe.h"

#include <exception>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

using Port = std::pair<int32_t, int32_t>;  // stage and output

std::optional<OutputPort> output_port(const StageSource& source) {
  if (const auto* output = std::get_if<OutputPort>(&source)) return *output;
  return std::nullopt;
}

/// Stages from which the loss can be reached.
std::vector<bool> live_stages(const Pipe& pipe) {
  std::vector<bool> live(static_cast<std::size_t>(pipe.num_stages()), false);
  live.back() = true;
  for (std::size_t k = live.size(); k-- > 0;) {
    if (!live[k]) continue;
    for (const StageSource& source : pipe.plan().stages[k].sources) {
      if (const auto output = output_port(source)) live[output->stage.position()] = true;
    }
  }
  return live;
}

std::vector<PipeStep> make_steps(const Pipe& pipe) {
  std::vector<PipeStep> steps;
  const auto count = static_cast<std::size_t>(pipe.num_stages());
  for (std::size_t k = 0; k < count; ++k) {
    steps.push_back({.kind = PipeStep::Kind::kForward, .stage = StageId(static_cast<int32_t>(k))});
  }
  const std::vector<bool> live = live_stages(pipe);
  std::set<Port> has_grad;
  for (std::size_t k = count; k-- > 0;) {
    if (!live[k]) continue;
    const StageId stage(static_cast<int32_t>(k));
    PipeStep backward{.kind = PipeStep::Kind::kBackward, .stage = stage};
    std::vector<PipeStep> sums;
    for (const StageSource& source : pipe.plan().stages[k].sources) {
      const auto port = output_port(source);
      backward.targets.push_back(port);
      if (port && !has_grad.insert({port->stage.value(), port->output}).second) {
        sums.push_back({.kind = PipeStep::Kind::kAddGrads,
                        .stage = port->stage,
                        .targets = {port},
                        .from = stage});
      }
    }
    steps.push_back(std::move(backward));
    steps.insert(steps.end(), sums.begin(), sums.end());
  }
  return steps;
}

std::string grad_name(const OutputPort& port, StageId from) {
  return fmt::format("%grad.{}.{}.from.{}", port.stage.value(), port.output, from.value());
}

std::string steps_text(const Pipe& pipe, const std::vector<PipeStep>& steps) {
  std::string text = pipe.call_text();
  // The last line returns; the output gets a name instead.
  const std::size_t last = text.rfind("return ");
  const std::string output = "%" + Pipe::stage_name(StageId(pipe.num_stages() - 1));
  text.replace(last, std::string("return ").size(), output + " = ");
  std::map<Port, std::string> grads;
  for (const PipeStep& step : steps) {
    if (step.kind == PipeStep::Kind::kBackward) {
      std::vector<std::string> results;
      for (const auto& target : step.targets) {
        results.push_back(target ? grad_name(*target, step.stage) : "_");
      }
      std::vector<std::string> given;
      const bool is_last = step.stage.value() + 1 == pipe.num_stages();
      if (is_last) given.emplace_back("loss");
      const std::size_t outputs = pipe.stage_graph(step.stage).parts().outputs.size();
      for (std::size_t o = 0; !is_last && o < outputs; ++o) {
        const auto found = grads.find({step.stage.value(), static_cast<int32_t>(o)});
        given.push_back(found == grads.end() ? "None" : found->second);
      }
      text += fmt::format("{} = backward {}({})\n", fmt::join(results, ", "),
                          Pipe::stage_name(step.stage), fmt::join(given, ", "));
      for (const auto& target : step.targets) {
        if (target)
          grads.try_emplace({target->stage.value(), target->output},
                            grad_name(*target, step.stage));
      }
    } else if (step.kind == PipeStep::Kind::kAddGrads) {
      const OutputPort& port = *step.targets.front();
      std::string& sum = grads[{port.stage.value(), port.output}];
      const std::string name =
          fmt::format("%grad.{}.{}.to.{}", port.stage.value(), port.output, step.from.value());
      text += fmt::format("{} = {} + {}\n", name, sum, grad_name(port, step.from));
      sum = name;
    }
  }
  return text + "return " + output + "\n";
}

}  // namespace

std::size_t find_loss(const TreeSpec& output, const std::optional<c10::IValue>& spec) {
  if (spec) {
    const std::vector<c10::IValue> leaves = tree::flatten_as(output, *spec, "loss_spec");
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      require<ArgumentError>(leaves[i].isBool(), "{}: expected a bool, got a different kind",
                             output.leaf_path(i, "loss_spec"));
      if (leaves[i].toBool()) return i;
    }
    throw ArgumentError("the loss spec has no True");
  }
  if (output.is_leaf()) return 0;
  std::size_t leaf = 0;
  for (std::size_t i = 0; output.kind() == TreeSpec::Kind::kDict && i < output.children().size();
       ++i) {
    if (output.key(i) == "loss" && output.children()[i].is_leaf()) return leaf;
    leaf += output.children()[i].num_leaves();
  }
  throw ArgumentError("the output has no key \"loss\": pass a loss spec that marks the loss");
}

PipeInfo info_of(const Pipe& pipe) {
  return {
      .graph = pipe.call_text(), .num_stages = pipe.num_stages(), .has_loss_and_backward = false};
}

LossPipe::LossPipe(Pipe pipe, const std::optional<c10::IValue>& loss_spec)
    : pipe_(std::move(pipe)), steps_(make_steps(pipe_)) {
  const auto find = [leaf = find_loss(pipe_.graph().parts().output, loss_spec)](
                        const c10::IValue& output, const c10::IValue&, const Kwargs&) {
    return tree::leaves(output)[leaf];
  };
  pipeline_ = std::make_shared<Pipeline>(
      pipe_, PipelineOptions{.schedule = "LoopedBFS", .ranks = 1, .loss = find});
}

PipeInfo LossPipe::info() const {
  return {.graph = steps_text(pipe_, steps_),
          .num_stages = pipe_.num_stages(),
          .has_loss_and_backward = true};
}

c10::IValue LossPipe::run(const Args& args, const Kwargs& kwargs) const {
  try {
    Microbatches batch;
    batch.inputs.push_back({args, kwargs});
    return pipeline_
        ->step(std::move(batch), {.scale = LossScale::kSum, .outputs = OutputMode::kEach})
        .outputs.front();
  } catch (const StageError& error) {
    if (error.cause() == nullptr) throw;
    std::rethrow_exception(error.cause());
  }
}

}  // namespace stagecraft
