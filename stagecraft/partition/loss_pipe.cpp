#include "stagecraft/partition/loss_pipe.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include <ATen/ops/add.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/stage/backward.h"
#include "stagecraft/stage/grad_value.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

using Port = std::pair<int32_t, int32_t>;  // stage and output

std::size_t index_of(StageId stage) {
  return stage.position();
}

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
      if (const auto output = output_port(source)) live[index_of(output->stage)] = true;
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

using ArgumentGrads = std::vector<std::pair<at::Tensor, at::Tensor>>;

void note_argument(const c10::IValue& value, const c10::IValue& grad, ArgumentGrads& found) {
  const std::vector<at::Tensor> tensors = tensors_of(value);
  const std::vector<at::Tensor> grads = grads_of(grad, tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined() && tensors[i].requires_grad() && grads[i].defined()) {
      found.emplace_back(tensors[i], grads[i]);
    }
  }
}

/// The copies of shared parameters: what a run gives to each is added up, last stage first, and
/// each gets the sum, on top of what it had.
class TiedCopies {
 public:
  explicit TiedCopies(const Pipe& pipe) {
    for (const TiedWeight& tie : pipe.ties()) {
      auto& copies = groups_.emplace_back();
      for (const ParameterRef& ref : tie) {
        copies.push_back(pipe.stage_graph(ref.stage).find_state(ref.name)->tensor);
        earlier_.push_back(std::exchange(copies.back().mutable_grad(), at::Tensor()));
      }
    }
  }

  /// Where a run has failed, each has what it had.
  ~TiedCopies() {
    auto earlier = earlier_.begin();
    for (const std::vector<at::Tensor>& copies : groups_) {
      for (const at::Tensor& copy : copies) {
        if (!is_added_) copy.mutable_grad() = std::move(*earlier++);
      }
    }
  }
  TiedCopies(const TiedCopies&) = delete;
  TiedCopies& operator=(const TiedCopies&) = delete;

  void add_up() {
    const c10::NoGradGuard no_grad;
    is_added_ = true;
    auto earlier = earlier_.begin();
    for (const std::vector<at::Tensor>& copies : groups_) {
      at::Tensor sum;
      for (std::size_t i = copies.size(); i-- > 0;) {
        const at::Tensor& grad = copies[i].grad();
        if (grad.defined()) sum = sum.defined() ? at::add(sum, grad) : grad.clone();
      }
      for (const at::Tensor& copy : copies) {
        at::Tensor before = std::move(*earlier++);
        if (before.defined() && sum.defined()) before.add_(sum);
        copy.mutable_grad() = before.defined() || !sum.defined() ? before : sum.clone();
      }
    }
  }

 private:
  std::vector<std::vector<at::Tensor>> groups_;
  std::vector<at::Tensor> earlier_;
  bool is_added_ = false;
};

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
    : pipe_(std::move(pipe)),
      loss_(find_loss(pipe_.graph().parts().output, loss_spec)),
      steps_(make_steps(pipe_)) {}

PipeInfo LossPipe::info() const {
  return {.graph = steps_text(pipe_, steps_),
          .num_stages = pipe_.num_stages(),
          .has_loss_and_backward = true};
}

c10::IValue LossPipe::run(const Args& args, const Kwargs& kwargs) const {
  const MicrobatchId m(0);
  pipe_.check_arguments(args, kwargs);
  std::vector<Stage> stages = pipe_.build_stages();
  TiedCopies ties(pipe_);
  ArgumentGrads argument_grads;
  std::vector<std::vector<c10::IValue>> outputs(stages.size());
  std::vector<Arguments> given(stages.size());
  std::map<Port, c10::IValue> grads;    // of outputs, as far as they are added up
  std::map<Port, c10::IValue> further;  // that of the last backward, to be added
  c10::IValue result;
  for (const PipeStep& step : steps_) {
    const std::size_t k = index_of(step.stage);
    const StagePlan& plan = pipe_.plan().stages[k];
    if (step.kind == PipeStep::Kind::kForward) {
      given[k] = pipe_.arguments_of(step.stage, args, kwargs, outputs);
      result = stages[k].forward(m, given[k]);
      if (k + 1 < stages.size()) {
        outputs[k] = outputs_of(result);
        continue;
      }
      const c10::IValue loss = tree::leaves(result)[loss_];
      if (!loss.isTensor()) throw ArgumentError("the loss must be a tensor, got " + describe(loss));
      stages[k].set_loss(m, loss.toTensor());
    } else if (step.kind == PipeStep::Kind::kBackward) {
      std::vector<c10::IValue> output_grads;
      for (std::size_t o = 0; k + 1 < stages.size() && o < plan.graph.parts().outputs.size(); ++o) {
        output_grads.push_back(grads[{step.stage.value(), static_cast<int32_t>(o)}]);
      }
      const std::vector<c10::IValue> input_grads = stages[k].backward(m, output_grads);
      further.clear();
      for (std::size_t i = 0; i < step.targets.size(); ++i) {
        if (!step.targets[i]) {
          note_argument(given[k].args[i], input_grads[i], argument_grads);
          continue;
        }
        const Port port{step.targets[i]->stage.value(), step.targets[i]->output};
        if (!grads.try_emplace(port, input_grads[i]).second) further[port] = input_grads[i];
      }
      std::size_t number = step.targets.size();
      for (const auto& [name, value] : given[k].kwargs) {
        note_argument(value, input_grads[number++], argument_grads);
      }
    } else {
      const Port port{step.targets.front()->stage.value(), step.targets.front()->output};
      grads[port] = add_grad_values(grads[port], further[port]);
    }
  }
  ties.add_up();
  backward_into(argument_grads);
  return tree::map(result, [](const c10::IValue& leaf) -> c10::IValue {
    return leaf.isTensor() && leaf.toTensor().defined() ? c10::IValue(leaf.toTensor().detach())
                                                        : leaf;
  });
}

}  // namespace stagecraft
