#include "tests/support/reference.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include <ATen/ops/full_like.h>
#include <torch/csrc/autograd/autograd.h>

#include "stagecraft/stage/grad_value.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/stage/stage_context.h"
#include "stagecraft/tree/tensor_meta.h"
#include "stagecraft/tree/tree.h"
#include "tests/support/routing.h"

namespace stagecraft {

namespace {

using Outputs = std::vector<std::vector<c10::IValue>>;  // by stage and output

c10::IValue detached(const c10::IValue& value) {
  return tree::map(value, [](const c10::IValue& leaf) {
    return leaf.isTensor() && leaf.toTensor().defined() ? c10::IValue(leaf.toTensor().detach())
                                                        : leaf;
  });
}

uint64_t seed_of(const Draws& draws, std::size_t m, std::size_t s) {
  return mix_seed(draws.seed, draws.step, m, s);
}

uint64_t draw_of(const Draws& draws, std::size_t m) {
  return mix_seed(draws.seed, draws.step, m, kWholeModel);
}

MicrobatchId transfer_id(std::size_t m) {
  return MicrobatchId(static_cast<int32_t>(m));
}

StageId stage_id(std::size_t s) {
  return StageId(static_cast<int32_t>(s));
}

c10::IValue target_of(const Microbatches& batch, std::size_t m) {
  return m < batch.targets.size() ? batch.targets[m] : c10::IValue();
}

void accumulate(const at::Tensor& leaf, const at::Tensor& grad) {
  if (!grad.defined()) return;
  at::Tensor& sum = leaf.mutable_grad();
  if (sum.defined()) {
    sum.add_(grad);
  } else {
    sum = grad.clone();
  }
}

void accumulate_inputs(const c10::IValue& value, const c10::IValue& grad) {
  const std::vector<at::Tensor> tensors = tensors_of(value);
  const std::vector<at::Tensor> grads = grads_of(grad, tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined() && tensors[i].is_leaf()) accumulate(tensors[i], grads[i]);
  }
}

std::vector<c10::IValue> values_of(const Arguments& arguments) {
  std::vector<c10::IValue> values = arguments.args;
  for (const auto& [name, value] : arguments.kwargs) values.push_back(value);
  return values;
}

// The sum over the copies of what this step gave to each.
void sum_ties(const TestModel& model, const std::vector<at::Tensor>& before) {
  const std::vector<StageParameter> parameters = parameters_of(model.bodies);
  for (const TiedWeight& tie : model.ties) {
    at::Tensor sum;
    std::vector<std::size_t> copies;
    for (std::size_t i = parameters.size(); i-- > 0;) {
      const bool is_copy = std::any_of(tie.begin(), tie.end(), [&](const ParameterRef& ref) {
        return ref.stage == parameters[i].stage && ref.name == parameters[i].name;
      });
      if (!is_copy) continue;
      copies.push_back(i);
      const at::Tensor& grad = parameters[i].tensor.grad();
      if (grad.defined()) sum = sum.defined() ? sum.add(grad) : grad.clone();
    }
    for (const std::size_t i : copies) {
      parameters[i].tensor.mutable_grad() = before[i];
      accumulate(parameters[i].tensor, sum);
    }
  }
}

// Sets aside what earlier steps gave to tied weights.
std::vector<at::Tensor> take_tied_grads(const TestModel& model) {
  std::vector<at::Tensor> before;
  for (const StageParameter& parameter : parameters_of(model.bodies)) {
    before.push_back(parameter.tensor.grad());
    for (const TiedWeight& tie : model.ties) {
      for (const ParameterRef& ref : tie) {
        if (ref.stage == parameter.stage && ref.name == parameter.name) {
          parameter.tensor.mutable_grad().reset();
        }
      }
    }
  }
  return before;
}

}  // namespace

WeightOrder weight_order(const Schedule& schedule) {
  WeightOrder order(static_cast<std::size_t>(schedule.num_stages()));
  for (const ActionList& list : schedule.lists()) {
    for (const Action action : list) {
      if (!makes_weight_gradients(action.type())) continue;
      order[static_cast<std::size_t>(action.stage().value())].push_back(action.microbatch());
    }
  }
  return order;
}

Trained train_cut(const TestModel& model, const Microbatches& batch, const WeightOrder& order,
                  const Draws& draws) {
  const std::size_t microbatches = batch.inputs.size();
  std::vector<Stage> stages = model.make_stages();
  const std::size_t last = stages.size() - 1;
  const std::vector<at::Tensor> before = take_tied_grads(model);

  Trained result;
  std::vector<std::vector<RoutedArguments>> routed(microbatches);
  std::vector<Outputs> grads(microbatches);  // of each stage's outputs
  for (std::size_t m = 0; m < microbatches; ++m) {
    Outputs outputs;
    at::Tensor added;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      routed[m].push_back(route(model.ports, stage_id(s), outputs, batch.inputs[m]));
      const c10::IValue output =
          stages[s].forward(transfer_id(m), routed[m].back().arguments,
                            {.seed = seed_of(draws, m, s), .draw = draw_of(draws, m)});
      outputs.push_back(outputs_of(output));
      grads[m].emplace_back(outputs.back().size());
      const at::Tensor more = stages[s].added_loss(transfer_id(m));
      if (more.defined()) added = added.defined() ? added.add(more) : more;
      if (s != last) continue;
      const at::Tensor loss = model.loss(output, target_of(batch, m), {});
      stages[s].set_loss(transfer_id(m), loss);
      grads[m].back().clear();
      result.losses.push_back(loss.detach());
      result.outputs.push_back(detached(output));
    }
    result.added_losses.push_back(added);
  }

  for (std::size_t s = stages.size(); s-- > 0;) {
    for (const MicrobatchId microbatch : order[s]) {
      const auto m = static_cast<std::size_t>(microbatch.value());
      const std::vector<c10::IValue> input_grads =
          stages[s].backward(microbatch, grads[m][s], batch.weights[m]);
      const RoutedArguments& from = routed[m][s];
      const std::vector<c10::IValue> values = values_of(from.arguments);
      for (std::size_t i = from.order.size(); i-- > 0;) {
        const std::size_t argument = from.order[i];
        const ArgumentSource& source = from.sources[argument];
        if (source.stage < 0) {
          accumulate_inputs(values[argument], input_grads[argument]);
          continue;
        }
        c10::IValue& sum = grads[m][static_cast<std::size_t>(source.stage)][source.output];
        sum = add_grad_values(sum, input_grads[argument]);
      }
    }
  }
  sum_ties(model, before);
  return result;
}

Trained train_uncut(const TestModel& model, const Microbatches& batch, const WeightOrder& order,
                    const Draws& draws) {
  const std::size_t microbatches = batch.inputs.size();
  const std::vector<StageBody>& bodies =
      model.plain_bodies.empty() ? model.bodies : model.plain_bodies;

  std::vector<at::Tensor> leaves;
  std::vector<std::optional<std::size_t>> stage_of;  // nothing for inputs of the model
  auto add_leaf = [&](const at::Tensor& tensor, std::optional<std::size_t> stage) {
    if (!tensor.defined() || !tensor.requires_grad() || !tensor.is_leaf()) return;
    for (const at::Tensor& leaf : leaves) {
      if (leaf.is_same(tensor)) return;
    }
    leaves.push_back(tensor);
    stage_of.push_back(stage);
  };
  for (const StageParameter& parameter : parameters_of(bodies)) {
    add_leaf(parameter.tensor, static_cast<std::size_t>(parameter.stage.value()));
  }
  for (const Arguments& inputs : batch.inputs) {
    for (const c10::IValue& value : values_of(inputs)) {
      for (const at::Tensor& tensor : tensors_of(value)) add_leaf(tensor, std::nullopt);
    }
  }

  Trained result;
  std::vector<std::vector<at::Tensor>> grads(microbatches);  // by leaf
  for (std::size_t m = 0; m < microbatches; ++m) {
    Outputs outputs;
    c10::IValue output;
    std::vector<at::Tensor> losses;
    for (std::size_t s = 0; s < bodies.size(); ++s) {
      const Arguments arguments =
          route(model.ports, stage_id(s), outputs, batch.inputs[m]).arguments;
      const RandomScope random(seed_of(draws, m, s));
      StageContext context{stage_id(s), model.num_stages(), transfer_id(m), true,
                           draw_of(draws, m)};
      const detail::StageContextGuard guard(context);
      output = bodies[s].forward(arguments.args, arguments.kwargs);
      outputs.push_back(outputs_of(output));
      losses.insert(losses.end(), context.losses.begin(), context.losses.end());
    }
    at::Tensor added;
    for (const at::Tensor& loss : losses) {
      added = added.defined() ? added.add(loss.detach()) : loss.detach();
    }
    losses.insert(losses.begin(), model.loss(output, target_of(batch, m), {}));
    result.losses.push_back(losses.front().detach());
    result.added_losses.push_back(added);
    result.outputs.push_back(detached(output));

    std::erase_if(losses, [](const at::Tensor& loss) { return !loss.requires_grad(); });
    grads[m].resize(leaves.size());
    if (losses.empty() || leaves.empty()) continue;
    std::vector<at::Tensor> weights;
    for (const at::Tensor& loss : losses) {
      weights.push_back(at::full_like(loss.detach(), batch.weights[m]));
    }
    grads[m] = torch::autograd::grad(losses, leaves, weights, /*retain_graph=*/std::nullopt,
                                     /*create_graph=*/false, /*allow_unused=*/true);
  }

  for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    if (stage_of[leaf]) {
      for (const MicrobatchId m : order[*stage_of[leaf]]) {
        accumulate(leaves[leaf], grads[static_cast<std::size_t>(m.value())][leaf]);
      }
    } else {
      for (std::size_t m = 0; m < microbatches; ++m) accumulate(leaves[leaf], grads[m][leaf]);
    }
  }
  return result;
}

std::string difference(const std::string& what, const at::Tensor& a, const at::Tensor& b,
                       double tolerance) {
  if (a.defined() != b.defined()) {
    return what + (a.defined() ? " is there, none was expected" : " is missing");
  }
  if (!a.defined()) return {};
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
    return what + " is " + describe(a) + ", expected " + describe(b);
  }
  const at::Tensor x = a.detach().cpu().contiguous();
  const at::Tensor y = b.detach().cpu().contiguous();
  if (x.nbytes() == 0) return {};
  if (std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0) return {};
  if (!x.is_floating_point() && !x.is_complex()) return what + " differs";
  const double distance = x.sub(y).abs().max().item<double>();
  const double largest = y.abs().max().item<double>();
  if (tolerance > 0 && distance <= tolerance * (1 + largest)) return {};
  return what + " differs by up to " + std::to_string(distance * 1e9) +
         "e-9, its largest element is " + std::to_string(largest);
}

std::string difference(const std::string& what, const std::vector<at::Tensor>& a,
                       const std::vector<at::Tensor>& b, double tolerance) {
  if (a.size() != b.size()) {
    return what + ": " + std::to_string(a.size()) + " of them, expected " +
           std::to_string(b.size());
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::string found = difference(what + " " + std::to_string(i), a[i], b[i], tolerance);
    if (!found.empty()) return found;
  }
  return {};
}

std::string difference(const std::string& what, const c10::IValue& a, const c10::IValue& b) {
  const tree::Flat x = tree::flatten(a);
  const tree::Flat y = tree::flatten(b);
  if (x.leaves.size() != y.leaves.size()) return what + " has another structure";
  for (std::size_t i = 0; i < x.leaves.size(); ++i) {
    if (x.leaves[i].isTensor() && y.leaves[i].isTensor()) {
      std::string found = difference(what, x.leaves[i].toTensor(), y.leaves[i].toTensor());
      if (!found.empty()) return found;
    }
  }
  return tree::equal(a, b) ? std::string() : what + " differs";
}

std::string difference(const Trained& a, const Trained& b) {
  if (a.outputs.size() != b.outputs.size()) return "another number of outputs";
  for (std::size_t m = 0; m < a.outputs.size(); ++m) {
    std::string found = difference("output " + std::to_string(m), a.outputs[m], b.outputs[m]);
    if (!found.empty()) return found;
  }
  std::string found = difference("loss", a.losses, b.losses);
  if (!found.empty()) return found;
  return difference("added loss", a.added_losses, b.added_losses, 1e-6);
}

}  // namespace stagecraft
