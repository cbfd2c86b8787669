#include "stagecraft/stage/stage.h"

#include <set>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/stage/backward.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/stage/recomputation.h"
#include "stagecraft/stage/stage_context.h"
#include "stagecraft/stage/stage_run.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft {

namespace {

void require_different_names(StageId index, const NamedTensors& parameters) {
  std::set<std::string_view> names;
  for (const auto& [name, parameter] : parameters) {
    require<ArgumentError>(names.insert(name).second,
                           "stage {}: two of its parameters are called \"{}\"", index.value(),
                           name);
  }
}

}  // namespace

Stage::Stage(StageId index, int32_t num_stages, StageBody body, StageOptions options)
    : index_(index),
      num_stages_(num_stages),
      body_(std::move(body)),
      options_(std::move(options)),
      loss_grad_(std::make_unique<detail::LossGrad>()) {
  require<ArgumentError>(index.value() >= 0 && index.value() < num_stages,
                         "stage {}: expected an index from 0 to {}", index.value(), num_stages - 1);
  require<ArgumentError>(static_cast<bool>(body_.forward), "stage {}: the body has no forward",
                         index.value());
  require_different_names(index, body_.parameters);
}

Stage::~Stage() = default;
Stage::Stage(Stage&&) noexcept = default;
Stage& Stage::operator=(Stage&&) noexcept = default;

Stage::Run& Stage::get_run(MicrobatchId microbatch, const char* what) const {
  require<ArgumentError>(runs_.contains(microbatch) && runs_[microbatch] != nullptr,
                         "stage {}: {} of microbatch {} without its forward", index_.value(), what,
                         microbatch.value());
  return *runs_[microbatch];
}

c10::IValue Stage::forward(MicrobatchId microbatch, const Arguments& arguments,
                           const ForwardOptions& options) {
  require<ArgumentError>(microbatch.value() >= 0, "stage {}: expected a microbatch from 0, got {}",
                         index_.value(), microbatch.value());
  while (!runs_.contains(microbatch)) runs_.push_back(nullptr);
  require<ArgumentError>(runs_[microbatch] == nullptr,
                         "stage {}: microbatch {} is forwarded again before its backward",
                         index_.value(), microbatch.value());
  std::unique_ptr<Run> run;
  // Used runs are used again: their vectors keep their capacity, so a step after the first
  // allocates less.
  if (free_.empty()) {
    run = std::make_unique<Run>();
  } else {
    run = std::move(free_.back());
    free_.pop_back();
  }

  const c10::AutoGradMode grad_mode(options.is_training);
  std::optional<c10::DeviceGuard> device_guard;
  if (!options_.device.is_cpu()) device_guard.emplace(options_.device);

  const bool without_graph = options_.recompute && options.is_training;
  c10::IValue output = without_graph ? run_without_graph(*run, microbatch, arguments, options)
                                     : run_forward(*run, microbatch, arguments, options, false);
  // Only now: a forward that throws leaves the microbatch as it was, and can be repeated.
  if (options.is_training) runs_[microbatch] = std::move(run);
  return output;
}

c10::IValue Stage::call_body(const Args& args, const Kwargs& kwargs, const ForwardOptions& options,
                             StageContext& context, bool is_recomputation) const {
  auto forward = [&]() -> c10::IValue {
    // Inside of around_forward: what the program's scope draws does not change the numbers of the
    // stage.
    std::optional<RandomScope> random;
    if (options.seed) random.emplace(*options.seed);
    const detail::StageContextGuard guard(context);
    return body_.forward(args, kwargs);
  };
  if (!options_.around_forward) return forward();
  return detail::call_around(options_.around_forward,
                             {index_, context.microbatch, options.is_training, is_recomputation},
                             forward);
}

c10::IValue Stage::run_forward(Run& run, MicrobatchId microbatch, const Arguments& arguments,
                               const ForwardOptions& options, bool is_recomputation) const {
  Args args;
  args.reserve(arguments.args.size());
  for (const c10::IValue& value : arguments.args) args.push_back(run.enter(value, device()));
  Kwargs kwargs;
  for (const auto& [name, value] : arguments.kwargs) kwargs.set(name, run.enter(value, device()));

  StageContext context{index_, num_stages_, microbatch, options.is_training, options.draw};
  c10::IValue output = call_body(args, kwargs, options, context, is_recomputation);
  if (!options.is_training) return output;
  // The run keeps edges, not tensors. An output that was sent can then be released while its
  // backward is still to come.
  for (const c10::IValue& value : outputs_of(output)) run.add_output(value);
  for (const at::Tensor& loss : context.losses) {
    run.add_loss(loss);
    run.added_loss =
        run.added_loss.defined() ? at::add(run.added_loss, loss.detach()) : loss.detach();
  }
  return output;
}

void Stage::set_loss(MicrobatchId microbatch, const at::Tensor& loss) {
  Run& run = get_run(microbatch, "loss");
  if (!loss.defined() || loss.numel() != 1) {
    throw ArgumentError(fmt::format("the loss of microbatch {} must have one element, got {}",
                                    microbatch.value(), describe(loss)));
  }
  run.has_loss = true;
  // The backward begins at the loss, whose graph holds the nodes that it needs.
  run.outputs.clear();
  // This loss comes before the losses that forward added, as in `loss + added`.
  std::vector<detail::LossEdge> added = std::exchange(run.losses, {});
  run.add_loss(loss);
  for (detail::LossEdge& edge : added) run.losses.push_back(std::move(edge));
}

at::Tensor Stage::added_loss(MicrobatchId microbatch) const {
  return get_run(microbatch, "added loss").added_loss;
}

// Runs the forward again if its first run has kept no graph.
std::vector<GradRoot> Stage::make_roots(Run& run, MicrobatchId microbatch,
                                        const std::vector<c10::IValue>& output_grads,
                                        double loss_weight) {
  if (!run.again) return run.make_roots(output_grads, loss_weight, *loss_grad_);
  std::vector<c10::IValue> grads = output_grads;
  WeightWork of_loss;  // a loss may have parameters of its own
  if (run.has_loss) {
    of_loss =
        // An input backward, whose inputs are the ends of the cut history. When the forward runs
        // again, only the part of the loss's graph that leads to parameters of the loss is left.
        stagecraft::backward_input(run.make_roots({}, loss_weight, *loss_grad_), run.again->ends());
    grads = run.again->take_output_grads();
  }
  run_again(run, microbatch);
  require<Error>(grads.empty() || grads.size() == run.outputs.size(),
                 "stage {}, microbatch {}: the recomputed forward returned {} outputs, expected {}",
                 index_.value(), microbatch.value(), run.outputs.size(), grads.size());
  std::vector<GradRoot> roots = run.make_roots(grads, loss_weight, *loss_grad_);
  // One backward for both parts: a parameter that the loss and the stage share gets its gradients
  // in one call of the autograd engine, as without recomputation.
  for (GradRoot& root : of_loss.roots) roots.push_back(std::move(root));
  return roots;
}

std::vector<c10::IValue> Stage::run_backward(MicrobatchId microbatch,
                                             const std::vector<c10::IValue>& output_grads,
                                             double loss_weight, bool with_weights) {
  Run& run = get_run(microbatch, with_weights ? "backward" : "input backward");
  require<ArgumentError>(!run.is_input_done,
                         "stage {}: microbatch {} already had its input backward", index_.value(),
                         microbatch.value());
  const std::size_t num_outputs = run.has_loss ? 0
                                  : run.again  ? run.again->num_outputs()
                                               : run.outputs.size();
  require<ArgumentError>(output_grads.empty() || output_grads.size() == num_outputs,
                         "stage {}: microbatch {} has {} outputs, got {} gradients", index_.value(),
                         microbatch.value(), num_outputs, output_grads.size());
  std::vector<GradRoot> roots = make_roots(run, microbatch, output_grads, loss_weight);
  for (GradRoot& root : roots) {
    if (!root.grad.defined()) continue;
    // A gradient arrives where the next stage has computed it. The autograd engine refuses a
    // different device.
    const c10::Device wanted = root.edge.function->input_metadata(root.edge.input_nr).device();
    if (root.grad.device() != wanted) root.grad = root.grad.to(wanted);
  }
  run.outputs.clear();
  // Edges that stay would keep nodes of the graph alive until W.
  run.losses.clear();

  // Weight gradients are computed outside autograd, so the graph leads to no parameters, and I and
  // B are the same call.
  if (has_weight_work()) {
    if (body_.own_backward) body_.own_backward->begin(with_weights);
    stagecraft::backward_full(std::move(roots));
    std::function<void()> work =
        body_.own_backward ? body_.own_backward->take_weight_work() : options_.weight_work();
    if (!with_weights) {
      run.own_weight_work = std::move(work);
    } else if (work) {
      work();
    }
  } else if (with_weights) {
    stagecraft::backward_full(std::move(roots));
  } else {
    run.weight = stagecraft::backward_input(std::move(roots), run.inputs);
  }
  run.is_input_done = true;
  std::vector<c10::IValue> grads = run.take_input_grads();
  // After the gradients were taken out of the inputs. Until W only run.weight keeps nodes alive.
  run.inputs.clear();
  run.arguments.clear();
  return grads;
}

void Stage::rehearse_backward(MicrobatchId microbatch, const std::vector<c10::IValue>& output_grads,
                              double loss_weight) {
  Run& run = get_run(microbatch, "backward");
  if (!run.again) {
    stagecraft::backward_full(run.make_roots(output_grads, loss_weight, *loss_grad_),
                              /*keep_graph=*/true);
    run.take_input_grads();
    return;
  }
  std::vector<c10::IValue> grads = output_grads;
  if (run.has_loss) {
    stagecraft::backward_full(run.make_roots({}, loss_weight, *loss_grad_), /*keep_graph=*/true);
    grads = run.again->take_output_grads();
  }
  const c10::AutoGradMode with_grad(true);
  // A second run: its graph is used up below, and the microbatch must be left as it is.
  Run other;
  {
    const ForwardStateScope as_before(run.again->state());
    run_forward(other, microbatch, run.again->arguments(), run.options, true);
  }
  stagecraft::backward_full(other.make_roots(grads, loss_weight, *loss_grad_));
}

void Stage::call_backward(MicrobatchId microbatch, BackwardKind kind,
                          const std::function<void()>& run) {
  bool is_last = false;
  // Counted before the call, because the scope is told. I does not end a microbatch: its W follows.
  if (kind != BackwardKind::kInput && backwards_left_ > 0) is_last = --backwards_left_ == 0;
  if (!options_.around_backward) return run();
  int calls = 0;
  options_.around_backward({index_, microbatch, kind, is_last}, [&] {
    ++calls;
    run();
  });
  require<ArgumentError>(calls == 1,
                         "stage {}: the scope around the backward of microbatch {} must call it "
                         "once, but called it {} times",
                         index_.value(), microbatch.value(), calls);
}

std::vector<c10::IValue> Stage::backward(MicrobatchId microbatch,
                                         const std::vector<c10::IValue>& output_grads,
                                         double loss_weight) {
  std::vector<c10::IValue> grads;
  call_backward(microbatch, BackwardKind::kFull,
                [&] { grads = run_backward(microbatch, output_grads, loss_weight, true); });
  auto& run = runs_[microbatch];
  run->clear();
  free_.push_back(std::move(run));
  return grads;
}

std::vector<c10::IValue> Stage::backward_input(MicrobatchId microbatch,
                                               const std::vector<c10::IValue>& output_grads,
                                               double loss_weight) {
  std::vector<c10::IValue> grads;
  call_backward(microbatch, BackwardKind::kInput,
                [&] { grads = run_backward(microbatch, output_grads, loss_weight, false); });
  return grads;
}

void Stage::backward_weight(MicrobatchId microbatch) {
  Run& run = get_run(microbatch, "weight backward");
  require<ArgumentError>(run.is_input_done,
                         "stage {}: weight backward of microbatch {} without its input backward",
                         index_.value(), microbatch.value());
  call_backward(microbatch, BackwardKind::kWeight, [&] {
    if (has_weight_work()) {
      if (run.own_weight_work) run.own_weight_work();
    } else {
      stagecraft::backward_weight(std::move(run.weight));
    }
  });
  auto& slot = runs_[microbatch];
  slot->clear();
  free_.push_back(std::move(slot));
}

void Stage::set_tensors(NamedTensors parameters, NamedTensors buffers) {
  require<ArgumentError>(
      num_pending() == 0,
      "stage {}: {} microbatches wait for their backward; call set_tensors before their forward",
      index_.value(), num_pending());
  require_different_names(index_, parameters);
  body_.parameters = std::move(parameters);
  body_.buffers = std::move(buffers);
  // They are the old buffers. The next forward finds out which of the new ones change.
  changing_buffers_.reset();
}

void Stage::set_recompute(bool recompute) {
  require<ArgumentError>(
      num_pending() == 0,
      "stage {}: {} microbatches wait for their backward; call set_recompute before their forward",
      index_.value(), num_pending());
  options_.recompute = recompute;
}

std::size_t Stage::num_pending() const {
  std::size_t pending = 0;
  for (const auto& run : runs_) pending += run != nullptr ? 1 : 0;
  return pending;
}

void Stage::reset() {
  runs_ = {};
  backwards_left_ = 0;
}

void Stage::discard(MicrobatchId microbatch) {
  if (runs_.contains(microbatch)) runs_[microbatch].reset();
}

void Stage::begin_step() {
  if (body_.own_backward) body_.own_backward->begin_step();
}

void Stage::release_kept() {
  *loss_grad_ = {};
  if (body_.own_backward) body_.own_backward->release_kept();
}

std::vector<c10::IValue> outputs_of(c10::IValue value) {
  std::vector<c10::IValue> outputs;
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    outputs.assign(elements.begin(), elements.end());
  } else if (value.isList()) {
    const auto list = value.toList();
    outputs.reserve(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) outputs.emplace_back(list.get(i));
  } else {
    outputs.push_back(std::move(value));
  }
  return outputs;
}

}  // namespace stagecraft
