#include "tests/support/pipeline_check.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "stagecraft/runtime/wiring.h"
#include "stagecraft/stage/grad_value.h"
#include "tests/support/reference.h"

namespace stagecraft {

namespace {

std::vector<at::Tensor> input_grads(const Microbatches& batch) {
  std::vector<at::Tensor> grads;
  auto add = [&](const c10::IValue& value) {
    for (const at::Tensor& tensor : tensors_of(value)) {
      if (tensor.defined() && tensor.is_leaf() && tensor.requires_grad()) {
        grads.push_back(tensor.grad());
      }
    }
  };
  for (const Arguments& inputs : batch.inputs) {
    for (const c10::IValue& value : inputs.args) add(value);
    for (const auto& [name, value] : inputs.kwargs) add(value);
  }
  return grads;
}

Pipeline make_pipeline(const TestModel& model, const ScheduleSource& source,
                       const CheckOptions& options) {
  PipelineOptions pipeline;
  pipeline.source = source;
  pipeline.loss = model.loss;
  pipeline.ports = model.ports;
  pipeline.ties = model.ties;
  pipeline.seed = options.seed;
  pipeline.threads_per_rank = 1;
  pipeline.zero_buffering = options.zero_buffering;
  return Pipeline(model.make_stages(), pipeline);
}

void fill_weights(Microbatches& batch) {
  if (!batch.weights.empty()) return;
  batch.weights.assign(batch.inputs.size(), 1.0 / static_cast<double>(batch.inputs.size()));
}

void put_grads(const std::vector<StageBody>& bodies, const std::vector<at::Tensor>& grads) {
  const std::vector<StageParameter> parameters = parameters_of(bodies);
  for (std::size_t i = 0; i < grads.size(); ++i) parameters[i].tensor.mutable_grad() = grads[i];
}

}  // namespace

PipelineCheck::PipelineCheck(const TestModel& model, const ScheduleSource& source,
                             CheckOptions options)
    : model_(model),
      source_(source),
      options_(options),
      pipeline_(make_pipeline(model, source, options)) {}

std::string PipelineCheck::step(const MakeBatch& make_batch, bool keeps_grads) {
  const MakeBatch complete = [&] {
    Microbatches batch = make_batch();
    fill_weights(batch);
    return batch;
  };
  const Microbatches own = complete();
  put_grads(model_.bodies, kept_[0]);
  const StepResult result = pipeline_.step(own, {.outputs = OutputMode::kEach});
  return compare(result, own, complete, keeps_grads);
}

std::string PipelineCheck::step(const at::Tensor& x, const at::Tensor& target,
                                int32_t microbatches) {
  const MakeBatch cut = [&] {
    Microbatches batch;
    const auto rows = static_cast<double>(x.size(0));
    for (const at::Tensor& part : x.tensor_split(microbatches)) {
      batch.inputs.push_back({{part}, {}});
      batch.weights.push_back(static_cast<double>(part.size(0)) / rows);
    }
    for (const at::Tensor& part : target.tensor_split(microbatches)) batch.targets.push_back(part);
    return batch;
  };
  const StepResult result =
      pipeline_.step({x}, {}, target, {.microbatches = microbatches, .outputs = OutputMode::kEach});
  return compare(result, {}, cut, false);
}

std::string PipelineCheck::compare(const StepResult& result, const Microbatches& own,
                                   const MakeBatch& make_batch, bool keeps_grads) {
  const std::vector<StageBody>& plain =
      model_.plain_bodies.empty() ? model_.bodies : model_.plain_bodies;
  const Draws draws{options_.seed, steps_++};
  const Trained trained{result.outputs, result.losses, result.added_losses};
  const std::vector<at::Tensor> grads = take_grads(model_.bodies);
  auto take_count = [&] { return options_.take_count ? options_.take_count() : 0; };
  const int64_t count = take_count();

  const Microbatches for_cut = make_batch();
  const WeightOrder order = weight_order(
      *source_.training(static_cast<int32_t>(for_cut.inputs.size()), stage_graph_of(model_.ports)));
  put_grads(model_.bodies, kept_[1]);
  const Trained cut = train_cut(model_, for_cut, order, draws);
  const std::vector<at::Tensor> cut_grads = take_grads(model_.bodies);
  const int64_t cut_count = take_count();

  const Microbatches for_uncut = make_batch();
  put_grads(plain, kept_[2]);
  const Trained uncut = train_uncut(model_, for_uncut, order, draws);
  const std::vector<at::Tensor> uncut_grads = take_grads(plain);
  const int64_t uncut_count = take_count();

  for (std::size_t i = 0; i < 3; ++i) kept_[i].clear();
  if (keeps_grads) {
    kept_[0] = grads;
    kept_[1] = cut_grads;
    kept_[2] = uncut_grads;
  }

  std::string found;
  auto look = [&](const std::string& from, std::string difference) {
    if (found.empty() && !difference.empty()) found = from + std::move(difference);
  };
  const std::string to_cut = "pipeline against cut loop: ";
  const std::string to_uncut = "pipeline against uncut model: ";
  look(to_cut, difference(trained, cut));
  look(to_uncut, difference(trained, uncut));
  if (count != cut_count || count != uncut_count) {
    look("", "the pipeline counts " + std::to_string(count) + ", the cut loop " +
                 std::to_string(cut_count) + ", the uncut model " + std::to_string(uncut_count));
  }
  if (own.weights != for_cut.weights && !own.weights.empty()) return "weights differ";
  const std::vector<StageParameter> parameters = parameters_of(model_.bodies);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string name =
        "gradient of stage " + to_string(parameters[i].stage) + "'s " + parameters[i].name;
    look(to_cut, difference(name, grads[i], cut_grads[i], options_.cut_tolerance));
    look(to_uncut, difference(name, grads[i], uncut_grads[i], options_.uncut_tolerance));
  }
  if (!own.inputs.empty()) {
    const std::vector<at::Tensor> of_inputs = input_grads(own);
    look(to_cut,
         difference("input gradient", of_inputs, input_grads(for_cut), options_.cut_tolerance));
    look(to_uncut,
         difference("input gradient", of_inputs, input_grads(for_uncut), options_.uncut_tolerance));
  }
  return found;
}

}  // namespace stagecraft
