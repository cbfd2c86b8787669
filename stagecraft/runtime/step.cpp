#include "stagecraft/runtime/step.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>

#include "stagecraft/base/check.h"
#include "stagecraft/microbatch/split.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

// The rows of a microbatch: those of the first tensor that has any.
std::optional<int64_t> find_rows(const c10::IValue& value) {
  if (value.isNone()) return std::nullopt;
  for (const c10::IValue& leaf : tree::leaves(value)) {
    if (leaf.isTensor() && leaf.toTensor().defined() && leaf.toTensor().dim() > 0) {
      return leaf.toTensor().size(0);
    }
  }
  return std::nullopt;
}

std::optional<int64_t> find_rows(const Arguments& arguments) {
  for (const c10::IValue& value : arguments.args) {
    if (const auto rows = find_rows(value)) return rows;
  }
  for (const auto& [name, value] : arguments.kwargs) {
    if (const auto rows = find_rows(value)) return rows;
  }
  return std::nullopt;
}

// Shares of the batch; equal ones where a microbatch has no rows to count.
std::vector<double> mean_weights(const Microbatches& batch, std::size_t count) {
  std::vector<double> rows;
  for (std::size_t m = 0; m < count; ++m) {
    std::optional<int64_t> found;
    if (m < batch.targets.size()) found = find_rows(batch.targets[m]);
    if (!found && m < batch.inputs.size()) found = find_rows(batch.inputs[m]);
    if (found) rows.push_back(static_cast<double>(*found));
  }
  const double total = std::accumulate(rows.begin(), rows.end(), 0.0);
  if (rows.size() != count || total <= 0) {
    return std::vector<double>(count, 1.0 / static_cast<double>(count));
  }
  for (double& share : rows) share /= total;
  return rows;
}

void check_count(std::size_t got, std::size_t expected, std::string_view what) {
  require<ArgumentError>(got == 0 || got == expected,
                         "step: expected {} for each of {} microbatches, got {}", what, expected,
                         got);
}

void fill_weights(Microbatches& batch, std::size_t count, const StepOptions& options) {
  if (!options.weights.empty()) batch.weights = options.weights;
  check_count(batch.weights.size(), count, "a weight");
  if (!batch.weights.empty()) return;
  if (options.scale == LossScale::kSum) {
    batch.weights.assign(count, 1.0);
  } else if (!batch.inputs.empty() || !batch.targets.empty()) {
    batch.weights = mean_weights(batch, count);
  }
}

}  // namespace

at::Tensor StepResult::loss() const {
  at::Tensor sum;
  for (std::size_t m = 0; m < losses.size(); ++m) {
    const at::Tensor weighted = at::mul(losses[m], weights[m]);
    sum = sum.defined() ? at::add(sum, weighted) : weighted;
  }
  return sum;
}

Microbatches split_batch(const Args& args, const Kwargs& kwargs, const c10::IValue& target,
                         const StepOptions& options) {
  const int64_t count = options.microbatches;
  require<ArgumentError>(count >= 1, "step: expected at least one microbatch, got {}", count);
  Microbatches batch;
  if (!args.empty() || !kwargs.empty()) {
    batch.inputs = split_args_kwargs_into_chunks(
        args, kwargs, count, {.args_spec = options.args_spec, .kwargs_spec = options.kwargs_spec});
    require<ArgumentError>(static_cast<int64_t>(batch.inputs.size()) == count,
                           "step: the batch has rows for {} microbatches only, asked for {}",
                           batch.inputs.size(), count);
  }
  if (!target.isNone()) {
    SplitOptions split;
    if (options.target_spec) split.args_spec = ChunkSpec::tuple({*options.target_spec});
    std::vector<Arguments> targets = split_args_kwargs_into_chunks({target}, {}, count, split);
    require<ArgumentError>(static_cast<int64_t>(targets.size()) == count,
                           "step: the target has rows for {} microbatches only, asked for {}",
                           targets.size(), count);
    for (Arguments& part : targets) batch.targets.push_back(std::move(part.args[0]));
  }
  fill_weights(batch, static_cast<std::size_t>(count), options);
  return batch;
}

Microbatches complete_batch(Microbatches batch, const StepOptions& options) {
  std::size_t count = batch.inputs.size();
  if (count == 0) count = batch.targets.size();
  if (count == 0) count = static_cast<std::size_t>(std::max(options.microbatches, 1));
  check_count(batch.targets.size(), count, "a target");
  fill_weights(batch, count, options);
  return batch;
}

}  // namespace stagecraft
