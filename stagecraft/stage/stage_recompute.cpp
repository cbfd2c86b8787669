// Forwards of a stage that keep no graph (StageOptions::recompute), and their second run before the
// backward.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/stage/recomputation.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/stage/stage_context.h"
#include "stagecraft/stage/stage_run.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

// Turns off autocast's cache: a forward with gradients must not find weights that were cast without
// gradients.
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

}  // namespace

// The first forward of a stage shows which buffers it changes. A second run of a forward must find
// these as they were before the first.
c10::IValue Stage::run_without_graph(Run& run, MicrobatchId microbatch, const Arguments& arguments,
                                     const ForwardOptions& options) {
  auto moved = [&](const c10::IValue& leaf) -> c10::IValue {
    if (!leaf.isTensor() || !leaf.toTensor().defined()) return leaf;
    const at::Tensor& tensor = leaf.toTensor();
    if (tensor.device() == device()) return leaf;
    return detail::copied(tensor.detach(), device()).requires_grad_(tensor.requires_grad());
  };
  // The tensors that the forward sees in this run have no history on which it could put a hook.
  auto plain = [](const c10::IValue& leaf) -> c10::IValue {
    return leaf.isTensor() && leaf.toTensor().requires_grad() ? leaf.toTensor().detach() : leaf;
  };
  Arguments own;
  Arguments seen;
  for (const c10::IValue& value : arguments.args) {
    // The arguments are kept on the stage's device: the second run must not copy them again, and
    // the sender's copy may be released.
    own.args.push_back(tree::map(value, moved));
    seen.args.push_back(tree::map(own.args.back(), plain));
  }
  for (const auto& [name, value] : arguments.kwargs) {
    c10::IValue mine = tree::map(value, moved);
    seen.kwargs.set(name, tree::map(mine, plain));
    own.kwargs.set(name, std::move(mine));
  }
  // Copying all buffers for each microbatch would cost memory in flight, so only those that the
  // first forward has changed are copied later.
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
      // Generators are saved only without a seed: with one, the forward draws from its own scope,
      // which begins again.
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
  // The second run adds the losses again. The value that was reported is the first one.
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

}  // namespace stagecraft
