#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include "stagecraft/base/index.h"
#include "stagecraft/base/indexed_vector.h"
#include "stagecraft/stage/around_backward.h"
#include "stagecraft/stage/around_forward.h"
#include "stagecraft/stage/stage_context.h"
#include "stagecraft/tree/arguments.h"
#include "stagecraft/tree/stage_body.h"

namespace stagecraft {

struct GradRoot;
namespace detail {
struct LossGrad;
struct StageRun;
}  // namespace detail

/// Options of a stage, for as long as it lives.
struct StageOptions {
  /// The device on which the stage computes. Inputs and gradients from other devices are copied to
  /// it. Parameters must already be there.
  c10::Device device = c10::kCPU;

  /// Keep only the arguments of a forward, and run it again before its backward (once, even if
  /// input and weight backward are separate). It costs a second forward and saves memory. Results
  /// are bitwise equal: random numbers, autocast and the buffers that forward changes are restored.
  /// The forward must not change its arguments in place (ArgumentError). Its first run is without
  /// gradients; every output of a floating type counts as an output with a gradient.
  bool recompute = false;

  /// Computes weight gradients outside autograd. If it is given, I and B run the whole graph, which
  /// must leave these parameters out (custom autograd functions that only record the work). Then
  /// this function is called. B calls the returned function at once, W calls it after an I.
  std::function<std::function<void()>()> weight_work = {};

  /// A scope around each forward: in steps and evals, and when a forward is run again. Called on
  /// the thread of the stage's rank.
  AroundForward around_forward = {};
  /// The same around each backward (B, I and W).
  AroundBackward around_backward = {};

  /// Handlers of UNSHARD, RESHARD, REDUCE_GRAD and WAIT_REDUCE_GRAD of this stage. Empty: they do
  /// nothing. The last one is called after the gradients are reduced over the replicas.
  std::function<void()> on_unshard = {};
  std::function<void()> on_reshard = {};
  std::function<void()> on_reduce_grad = {};
  std::function<void()> on_wait_reduce_grad = {};
};

/// Options of one forward.
struct ForwardOptions {
  /// Keep what the backward needs. Otherwise no autograd graph is made.
  bool is_training = true;
  /// Random operators draw from this seed. Without it, they draw from the generators of the
  /// process.
  std::optional<uint64_t> seed = std::nullopt;
  /// The same seed in all stages, for bodies that know the name of each operator in the whole
  /// model; see StageContext::draw.
  std::optional<uint64_t> draw = std::nullopt;
};

/// A stage of the model and its microbatches in flight. Used by one thread at a time.
///
///   Stage stage(StageId(0), 2, stage_body(torch::nn::Linear(16, 16)));
///   c10::IValue y = stage.forward(m, {{x}, {}});
///   std::vector<c10::IValue> dx = stage.backward(m, {dy});           // or:
///   dx = stage.backward_input(m, {dy});  ...  stage.backward_weight(m);
///
/// Gradients of inputs and outputs have the form of grad_value.h: None if there is no gradient.
class Stage {
 public:
  /// ArgumentError unless 0 <= index < num_stages and the body has a forward.
  Stage(StageId index, int32_t num_stages, StageBody body, StageOptions options = {});
  ~Stage();
  Stage(Stage&&) noexcept;
  Stage& operator=(Stage&&) noexcept;

  StageId index() const { return index_; }
  int32_t num_stages() const { return num_stages_; }
  bool is_first() const { return index_.value() == 0; }
  bool is_last() const { return index_.value() + 1 == num_stages_; }
  c10::Device device() const { return options_.device; }
  const NamedTensors& parameters() const { return body_.parameters; }
  const NamedTensors& buffers() const { return body_.buffers; }
  /// StageBody::shares_casts.
  bool shares_casts() const { return body_.shares_casts; }
  const StageOptions& options() const { return options_; }

  /// Runs the stage on one microbatch. Tensors of the arguments that require gradients get a
  /// history that begins here; their own history is not changed. ArgumentError if an earlier
  /// forward of the microbatch waits for its backward.
  c10::IValue forward(MicrobatchId microbatch, const Arguments& arguments,
                      const ForwardOptions& options = {});

  /// Makes the backward of the microbatch start from this loss instead of the outputs.
  /// ArgumentError unless the loss has one element and the microbatch was forwarded.
  void set_loss(MicrobatchId microbatch, const at::Tensor& loss);
  /// The sum of the losses that forward passed to add_loss; undefined if there are none.
  at::Tensor added_loss(MicrobatchId microbatch) const;

  /// The three backwards of one microbatch. `output_grads` has one entry for each output (a stage
  /// that returns a tuple or list has several), or is empty, for example if the microbatch has a
  /// loss. Losses are multiplied by `loss_weight`. Returns the gradients of args, then kwargs.
  ///
  /// ArgumentError for a backward without its forward, W without I, or a number of gradients that
  /// differs from the number of outputs.
  std::vector<c10::IValue> backward(MicrobatchId microbatch,
                                    const std::vector<c10::IValue>& output_grads,
                                    double loss_weight = 1);
  std::vector<c10::IValue> backward_input(MicrobatchId microbatch,
                                          const std::vector<c10::IValue>& output_grads,
                                          double loss_weight = 1);
  void backward_weight(MicrobatchId microbatch);

  /// Runs the same as `backward`, but leaves the microbatch unchanged: its backward can still be
  /// run. Adds to the .grad of the parameters, too. For finding out whether a device can capture
  /// it.
  void rehearse_backward(MicrobatchId microbatch, const std::vector<c10::IValue>& output_grads,
                         double loss_weight);

  /// Sets the number of backwards that end a microbatch (B or W) in the step, from which
  /// BackwardInfo::is_last follows. The runtime calls it at the begin of a step.
  void expect_backwards(std::size_t count) { backwards_left_ = count; }

  /// Tells the body that a step begins (OwnBackward). The runtime calls it.
  void begin_step();

  /// Replaces the tensors that the stage names as its parameters and buffers, for a body whose
  /// tensors have been exchanged (a module that was moved, wrapped or cast). ArgumentError while a
  /// microbatch waits for its backward, or if two parameters have the same name.
  void set_tensors(NamedTensors parameters, NamedTensors buffers);

  /// Changes StageOptions::recompute. ArgumentError while a microbatch waits for its backward.
  void set_recompute(bool recompute);

  /// The number of microbatches that wait for a backward, including those between I and W.
  std::size_t num_pending() const;
  /// Discards all microbatches in flight.
  void reset();
  /// Discards one microbatch, if it is in flight.
  void discard(MicrobatchId microbatch);
  /// Releases tensors that are kept from one microbatch to the next, to save their creation.
  void release_kept();

 private:
  using Run = detail::StageRun;

  Run& get_run(MicrobatchId microbatch, const char* what) const;
  /// Whether weight gradients are computed outside autograd.
  bool has_weight_work() const { return body_.own_backward || options_.weight_work; }
  c10::IValue call_body(const Args& args, const Kwargs& kwargs, const ForwardOptions& options,
                        StageContext& context, bool is_recomputation) const;
  c10::IValue run_forward(Run& run, MicrobatchId microbatch, const Arguments& arguments,
                          const ForwardOptions& options, bool is_recomputation) const;
  c10::IValue run_without_graph(Run& run, MicrobatchId microbatch, const Arguments& arguments,
                                const ForwardOptions& options);
  void run_again(Run& run, MicrobatchId microbatch) const;
  std::vector<GradRoot> make_roots(Run& run, MicrobatchId microbatch,
                                   const std::vector<c10::IValue>& output_grads,
                                   double loss_weight);
  /// Calls `run` in the scope of StageOptions::around_backward.
  void call_backward(MicrobatchId microbatch, BackwardKind kind, const std::function<void()>& run);
  std::vector<c10::IValue> run_backward(MicrobatchId microbatch,
                                        const std::vector<c10::IValue>& output_grads,
                                        double loss_weight, bool with_weights);

  StageId index_;
  int32_t num_stages_;
  StageBody body_;
  StageOptions options_;
  std::unique_ptr<detail::LossGrad> loss_grad_;
  std::optional<std::vector<at::Tensor>> changing_buffers_;  // known after the first forward
  IndexedVector<MicrobatchId, std::unique_ptr<Run>> runs_;
  std::vector<std::unique_ptr<Run>> free_;  // used up, to be used again
  std::size_t backwards_left_ = 0;          // B and W of this step; 0: unknown
};

/// The outputs of a stage: the elements of a tuple or list, otherwise the value itself.
std::vector<c10::IValue> outputs_of(c10::IValue value);

}  // namespace stagecraft
