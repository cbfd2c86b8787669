#include "stagecraft/stage/stage.h"

#include <set>
#include <string_view>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>

#include "stagecraft/base/check.h"
#include "stagecraft/stage/backward.h"
#include "stagecraft/stage/grad_value.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/stage/recomputation.h"
#include "stagecraft/stage/stage_context.h"
#include "stagecraft/stage/stage_input.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tensor_meta.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

constexpr int32_t kNoInput = -1;

// Which StageInput each tensor of a value became, or kNoInput.
struct ValueInputs {
  bool is_tensor = false;
  std::vector<int32_t> inputs;
};

struct LossEdge {
  GradEdge edge;
  c10::TensorOptions options;
  int64_t dim = 0;
};

bool is_same(const c10::TensorOptions& a, const c10::TensorOptions& b) {
  return a.dtype() == b.dtype() && a.device() == b.device();
}

// A copy to the host is waited for: nothing else would keep it from being read too early.
at::Tensor copied(const at::Tensor& tensor, c10::Device device) {
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

// Weights that are cast without gradients must not be found by a forward with them.
class NoCastCache {
 public:
  NoCastCache() : was_enabled_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~NoCastCache() { at::autocast::set_autocast_cache_enabled(was_enabled_); }
  NoCastCache(const NoCastCache&) = delete;
  NoCastCache& operator=(const NoCastCache&) = delete;

 private:
  bool was_enabled_;
};

// What is kept of an output: where the gradients of its tensors enter.
std::vector<GradEdge> output_edges(const c10::IValue& output) {
  std::vector<GradEdge> edges;
  for (const at::Tensor& tensor : tensors_of(output)) edges.push_back(grad_edge_of(tensor));
  return edges;
}

void require_different_names(StageId index, const NamedTensors& parameters) {
  std::set<std::string_view> names;
  for (const auto& [name, parameter] : parameters) {
    require<ArgumentError>(names.insert(name).second,
                           "stage {}: two of its parameters are called \"{}\"", index.value(),
                           name);
  }
}

}  // namespace

// The gradient to start from, kept for the next microbatch: most have the same weight. Code that
// adds to it makes a copy, because it is held here.
struct Stage::LossGrad {
  double weight = 0;
  at::Tensor tensor;

  const at::Tensor& get(const LossEdge& loss, double wanted) {
    if (!tensor.defined() || weight != wanted || tensor.dim() != loss.dim ||
        !is_same(tensor.options(), loss.options)) {
      weight = wanted;
      tensor = at::full(std::vector<int64_t>(static_cast<std::size_t>(loss.dim), 1), wanted,
                        loss.options);
    }
    return tensor;
  }
};

struct Stage::Run {
  bool is_input_done = false;
  bool has_loss = false;
  std::vector<StageInput> inputs;
  std::vector<ValueInputs> arguments;  // args, then kwargs
  std::vector<std::vector<GradEdge>> outputs;
  std::vector<LossEdge> losses;
  at::Tensor added_loss;
  WeightWork weight;
  std::function<void()> own_weight_work;
  std::unique_ptr<Recomputation> again;  // where the forward has kept nothing
  ForwardOptions options;                // of that forward

  void clear() {
    again.reset();
    is_input_done = has_loss = false;
    inputs.clear();
    arguments.clear();
    outputs.clear();
    losses.clear();
    added_loss.reset();
    weight.roots.clear();
    own_weight_work = nullptr;
  }

  // The value as the stage sees it; tensors that require grad become inputs.
  c10::IValue enter(const c10::IValue& value, c10::Device device) {
    ValueInputs& entry = arguments.emplace_back();
    if (value.isTensor()) {
      entry.is_tensor = true;
      return enter_tensor(value.toTensor(), device, entry);
    }
    if (!value.isTuple() && !value.isList() && !value.isGenericDict()) return value;
    return tree::map(value, [&](const c10::IValue& leaf) {
      return leaf.isTensor() ? c10::IValue(enter_tensor(leaf.toTensor(), device, entry)) : leaf;
    });
  }

  at::Tensor enter_tensor(const at::Tensor& tensor, c10::Device device, ValueInputs& entry) {
    if (!tensor.defined()) {
      entry.inputs.push_back(kNoInput);
      return tensor;
    }
    const bool is_elsewhere = tensor.device() != device;
    if (!tensor.requires_grad()) {
      entry.inputs.push_back(kNoInput);
      return is_elsewhere ? copied(tensor, device) : tensor;
    }
    entry.inputs.push_back(static_cast<int32_t>(inputs.size()));
    StageInput& input =
        inputs.emplace_back(is_elsewhere ? copied(tensor.detach(), device) : tensor);
    at::Tensor seen = input.tensor();
    input.release_tensor();
    return seen;
  }

  void add_loss(const at::Tensor& loss) {
    GradEdge edge = grad_edge_of(loss);
    if (edge.is_valid()) losses.push_back({std::move(edge), loss.options(), loss.dim()});
  }

  std::vector<GradRoot> make_roots(const std::vector<c10::IValue>& grads, double loss_weight,
                                   LossGrad& loss_grad) const {
    std::vector<GradRoot> roots;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].isNone()) continue;
      const std::vector<GradEdge>& edges = outputs[i];
      std::vector<at::Tensor> tensors = grads_of(grads[i], edges.size());
      for (std::size_t j = 0; j < edges.size(); ++j) {
        if (edges[j].is_valid()) roots.push_back({edges[j], std::move(tensors[j])});
      }
    }
    for (const LossEdge& loss : losses)
      roots.push_back({loss.edge, loss_grad.get(loss, loss_weight)});
    return roots;
  }

  std::vector<c10::IValue> take_input_grads() const {
    std::vector<c10::IValue> grads;
    grads.reserve(arguments.size());
    for (const ValueInputs& argument : arguments) {
      if (argument.inputs.empty()) {
        grads.emplace_back();
        continue;
      }
      std::vector<at::Tensor> tensors;
      tensors.reserve(argument.inputs.size());
      for (const int32_t input : argument.inputs) {
        tensors.push_back(input == kNoInput ? at::Tensor()
                                            : inputs[static_cast<std::size_t>(input)].take_grad());
      }
      grads.push_back(make_grad_value(argument.is_tensor, std::move(tensors)));
    }
    return grads;
  }
};

Stage::Stage(StageId index, int32_t num_stages, StageBody body, StageOptions options)
    : index_(index),
      num_stages_(num_stages),
      body_(std::move(body)),
      options_(std::move(options)),
      loss_grad_(std::make_unique<LossGrad>()) {
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
  const auto m = microbatch.position();
  require<ArgumentError>(m < runs_.size() && runs_[m] != nullptr,
                         "stage {}: {} of microbatch {} without its forward", index_.value(), what,
                         microbatch.value());
  return *runs_[m];
}

c10::IValue Stage::forward(MicrobatchId microbatch, const Arguments& arguments,
                           const ForwardOptions& options) {
  require<ArgumentError>(microbatch.value() >= 0, "stage {}: expected a microbatch from 0, got {}",
                         index_.value(), microbatch.value());
  const auto m = microbatch.position();
  if (runs_.size() <= m) runs_.resize(m + 1);
  require<ArgumentError>(runs_[m] == nullptr,
                         "stage {}: microbatch {} is forwarded again before its backward",
                         index_.value(), microbatch.value());
  std::unique_ptr<Run> run;
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
  if (options.is_training) runs_[m] = std::move(run);
  return output;
}

c10::IValue Stage::call_body(const Args& args, const Kwargs& kwargs, const ForwardOptions& options,
                             StageContext& context, bool is_recomputation) const {
  auto forward = [&]() -> c10::IValue {
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
  for (const c10::IValue& value : outputs_of(output)) run.outputs.push_back(output_edges(value));
  for (const at::Tensor& loss : context.losses) {
    run.add_loss(loss);
    run.added_loss =
        run.added_loss.defined() ? at::add(run.added_loss, loss.detach()) : loss.detach();
  }
  return output;
}

// The first time a stage runs it is seen which buffers its forward changes: those are what a second
// run must find as they were.
c10::IValue Stage::run_without_graph(Run& run, MicrobatchId microbatch, const Arguments& arguments,
                                     const ForwardOptions& options) {
  auto moved = [&](const c10::IValue& leaf) -> c10::IValue {
    if (!leaf.isTensor() || !leaf.toTensor().defined()) return leaf;
    const at::Tensor& tensor = leaf.toTensor();
    if (tensor.device() == device()) return leaf;
    return copied(tensor.detach(), device()).requires_grad_(tensor.requires_grad());
  };
  // What the forward sees this time has no history that it could put a hook on.
  auto plain = [](const c10::IValue& leaf) -> c10::IValue {
    return leaf.isTensor() && leaf.toTensor().requires_grad() ? leaf.toTensor().detach() : leaf;
  };
  Arguments own;
  Arguments seen;
  for (const c10::IValue& value : arguments.args) {
    own.args.push_back(tree::map(value, moved));
    seen.args.push_back(tree::map(own.args.back(), plain));
  }
  for (const auto& [name, value] : arguments.kwargs) {
    c10::IValue mine = tree::map(value, moved);
    seen.kwargs.set(name, tree::map(mine, plain));
    own.kwargs.set(name, std::move(mine));
  }
  const bool is_first = !changing_buffers_;
  std::vector<at::Tensor> buffers;
  if (is_first) {
    for (const auto& [name, buffer] : body_.buffers) buffers.push_back(buffer);
  } else {
    buffers = *changing_buffers_;
  }
  run.options = options;
  run.again = std::make_unique<Recomputation>(
      std::move(own),
      ForwardState(
          {.device = device(), .has_generators = !options.seed, .buffers = std::move(buffers)}));

  const c10::NoGradGuard no_grad;
  const NoCastCache no_cache;
  StageContext context{index_, num_stages_, microbatch, options.is_training, options.draw};
  const c10::IValue output = call_body(seen.args, seen.kwargs, options, context, false);
  require<ArgumentError>(!run.again->is_changed(),
                         "stage {}: its forward changes an argument in place, so it cannot be "
                         "recomputed: change a copy, or do not use StageOptions::recompute",
                         index_.value());
  if (is_first) changing_buffers_ = run.again->keep_changed_buffers();
  for (const at::Tensor& loss : context.losses) {
    run.added_loss = run.added_loss.defined() ? at::add(run.added_loss, loss) : loss;
  }
  return run.again->cut(output);
}

void Stage::run_again(Run& run, MicrobatchId microbatch) const {
  require<Error>(
      !run.again->is_changed(),
      "stage {}, microbatch {}: an argument was changed in place between its forward and "
      "its backward, which runs the forward again",
      index_.value(), microbatch.value());
  const c10::AutoGradMode with_grad(true);
  std::optional<c10::DeviceGuard> device_guard;
  if (!options_.device.is_cpu()) device_guard.emplace(options_.device);
  const at::Tensor added_loss = std::exchange(run.added_loss, {});
  run.losses.clear();
  run.outputs.clear();
  {
    const ForwardStateScope as_before(run.again->state());
    run_forward(run, microbatch, run.again->arguments(), run.options, true);
  }
  run.added_loss = added_loss;
  run.again.reset();
}

void Stage::set_loss(MicrobatchId microbatch, const at::Tensor& loss) {
  Run& run = get_run(microbatch, "loss");
  if (!loss.defined() || loss.numel() != 1) {
    throw ArgumentError(fmt::format("the loss of microbatch {} must have one element, got {}",
                                    microbatch.value(), describe(loss)));
  }
  run.has_loss = true;
  run.outputs.clear();
  // Ahead of what forward added, as in `loss + added`.
  std::vector<LossEdge> added = std::exchange(run.losses, {});
  run.add_loss(loss);
  for (LossEdge& edge : added) run.losses.push_back(std::move(edge));
}

at::Tensor Stage::added_loss(MicrobatchId microbatch) const {
  return get_run(microbatch, "added loss").added_loss;
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
  std::vector<GradRoot> roots;
  if (!run.again) {
    roots = run.make_roots(output_grads, loss_weight, *loss_grad_);
  } else {
    std::vector<c10::IValue> grads = output_grads;
    WeightWork of_loss;  // a loss may have parameters of its own
    if (run.has_loss) {
      of_loss = stagecraft::backward_input(run.make_roots({}, loss_weight, *loss_grad_),
                                           run.again->ends());
      grads = run.again->take_output_grads();
    }
    run_again(run, microbatch);
    require<Error>(
        grads.empty() || grads.size() == run.outputs.size(),
        "stage {}, microbatch {}: the recomputed forward returned {} outputs, expected {}",
        index_.value(), microbatch.value(), run.outputs.size(), grads.size());
    roots = run.make_roots(grads, loss_weight, *loss_grad_);
    for (GradRoot& root : of_loss.roots) roots.push_back(std::move(root));
  }
  for (GradRoot& root : roots) {
    if (!root.grad.defined()) continue;
    const c10::Device wanted = root.edge.function->input_metadata(root.edge.input_nr).device();
    if (root.grad.device() != wanted) root.grad = root.grad.to(wanted);
  }
  run.outputs.clear();
  run.losses.clear();

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
  auto& run = runs_[microbatch.position()];
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
  auto& slot = runs_[microbatch.position()];
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
  runs_.clear();
  backwards_left_ = 0;
}

void Stage::discard(MicrobatchId microbatch) {
  if (microbatch.position() < runs_.size()) runs_[microbatch.position()].reset();
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
