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
#include "stagecraft/stage/stage_body.h"
#include "stagecraft/stage/stage_context.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// Options of a stage, for as long as it lives.
struct StageOptions {
  /// Where the stage computes. Inputs and gradients that come from elsewhere are copied to it;
  /// parameters have to be there already.
  c10::Device device = c10::kCPU;

  /// Keep nothing of a forward but its arguments, and run it again before its backward (once, also
  /// where input and weight backward come apart). Less memory for a second forward; the same bits:
  /// random numbers, autocast and the buffers that forward changes are as they were the first time.
  /// The forward must not change its arguments in place (ArgumentError). It runs without gradients
  /// the first time; every output of a floating type then counts as one that has a gradient.
  bool recompute = false;

  /// Weight gradients of one's own making. When it is given, both I and B run the whole graph,
  /// which must leave those parameters out (custom autograd functions that only note what is to be
  /// done); then this is called, and what it returns is called once: right away by B, in W after an
  /// I.
  std::function<std::function<void()>()> weight_work = {};

  /// Called by UNSHARD, RESHARD, REDUCE_GRAD and WAIT_REDUCE_GRAD of this stage; the last one after
  /// the gradients are reduced over the replicas.
  std::function<void()> on_unshard = {};
  std::function<void()> on_reshard = {};
  std::function<void()> on_reduce_grad = {};
  std::function<void()> on_wait_reduce_grad = {};
};

/// Options of one forward.
struct ForwardOptions {
  /// Keep what the backward needs; otherwise nothing is kept and no graph is made.
  bool is_training = true;
  /// Operators that draw random numbers draw from this seed and leave the process's generators
  /// alone; without it they draw from those.
  std::optional<uint64_t> seed = std::nullopt;
  /// The same in all stages: for bodies that know the place of an operator in the whole model, see
  /// StageContext::draw.
  std::optional<uint64_t> draw = std::nullopt;
};

/// A piece of the model and its microbatches under way. Belongs to one thread at a time.
///
///   Stage stage(StageId(0), 2, stage_body(torch::nn::Linear(16, 16)));
///   c10::IValue y = stage.forward(m, {{x}, {}});
///   std::vector<c10::IValue> dx = stage.backward(m, {dy});           // or:
///   dx = stage.backward_input(m, {dy});  ...  stage.backward_weight(m);
///
/// Gradients of inputs and outputs are values as grad_value.h says: None where there is none.
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
  const StageOptions& options() const { return options_; }

  /// Runs the stage on one microbatch. Tensors of the arguments that require grad get a history
  /// that begins here; their own is not touched. ArgumentError when the microbatch's last forward
  /// still waits for its backward.
  c10::IValue forward(MicrobatchId microbatch, const Arguments& arguments,
                      const ForwardOptions& options = {});

  /// The microbatch ends in this loss: its backward starts there, and not at the outputs.
  /// ArgumentError unless the loss has one element and the microbatch was forwarded.
  void set_loss(MicrobatchId microbatch, const at::Tensor& loss);
  /// The sum of what forward gave to add_loss; undefined when nothing was.
  at::Tensor added_loss(MicrobatchId microbatch) const;

  /// The three backwards of one microbatch. `output_grads` has one entry for each output (a stage
  /// that returns a tuple or list has several), or none at all, as where the microbatch has a loss;
  /// losses are weighted with `loss_weight`. Returns the gradients of the arguments: args, then
  /// kwargs.
  ///
  /// ArgumentError for a backward without its forward, W without I, or a number of gradients that
  /// is not that of the outputs.
  std::vector<c10::IValue> backward(MicrobatchId microbatch,
                                    const std::vector<c10::IValue>& output_grads,
                                    double loss_weight = 1);
  std::vector<c10::IValue> backward_input(MicrobatchId microbatch,
                                          const std::vector<c10::IValue>& output_grads,
                                          double loss_weight = 1);
  void backward_weight(MicrobatchId microbatch);

  /// Changes StageOptions::recompute. ArgumentError while a microbatch waits for its backward.
  void set_recompute(bool recompute);

  /// How many microbatches wait for a backward, I without its W included.
  std::size_t num_pending() const;
  /// Forgets them all.
  void reset();

 private:
  struct Run;
  struct LossGrad;

  Run& get_run(MicrobatchId microbatch, const char* what) const;
  c10::IValue call_body(const Args& args, const Kwargs& kwargs, const ForwardOptions& options,
                        StageContext& context) const;
  c10::IValue run_forward(Run& run, MicrobatchId microbatch, const Arguments& arguments,
                          const ForwardOptions& options) const;
  c10::IValue run_without_graph(Run& run, MicrobatchId microbatch, const Arguments& arguments,
                                const ForwardOptions& options);
  void run_again(Run& run, MicrobatchId microbatch) const;
  std::vector<c10::IValue> run_backward(MicrobatchId microbatch,
                                        const std::vector<c10::IValue>& output_grads,
                                        double loss_weight, bool with_weights);

  StageId index_;
  int32_t num_stages_;
  StageBody body_;
  StageOptions options_;
  std::unique_ptr<LossGrad> loss_grad_;
  std::optional<std::vector<at::Tensor>> changing_buffers_;  // known after the first forward
  std::vector<std::unique_ptr<Run>> runs_;                   // by microbatch
  std::vector<std::unique_ptr<Run>> free_;                   // used up, to be used again
};

/// The outputs of a stage: the elements of a tuple or list, otherwise the value itself.
std::vector<c10::IValue> outputs_of(c10::IValue value);

}  // namespace stagecraft
