#include "stagecraft/runtime/step.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
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

// The rows of a microbatch: size(0) of the first tensor with dimensions.
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

// The rows of the parts of a batch that was split here, counted in the dimension in which the parts
// differ from the batch.
std::vector<double> rows_of_parts(const c10::IValue& whole, std::span<const c10::IValue> parts) {
  const std::vector<c10::IValue> leaves = tree::leaves(whole);
  const std::vector<c10::IValue> first = tree::leaves(parts.front());
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (!leaves[i].isTensor() || !leaves[i].toTensor().defined()) continue;
    const at::Tensor& tensor = leaves[i].toTensor();
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      if (first[i].toTensor().size(dim) == tensor.size(dim)) continue;
      std::vector<double> rows;
      for (const c10::IValue& part : parts) {
        rows.push_back(static_cast<double>(tree::leaves(part)[i].toTensor().size(dim)));
      }
      return rows;
    }
  }
  return {};
}

c10::IValue as_tree(const Args& args, const Kwargs& kwargs) {
  std::vector<c10::IValue> values(args.begin(), args.end());
  for (const auto& [name, value] : kwargs) values.push_back(value);
  return tree::tuple(std::move(values));
}

std::vector<double> rows_of_inputs(const Args& args, const Kwargs& kwargs,
                                   const std::vector<Arguments>& parts) {
  std::vector<c10::IValue> trees;
  for (const Arguments& part : parts) trees.push_back(as_tree(part.args, part.kwargs));
  return rows_of_parts(as_tree(args, kwargs), trees);
}

void set_shares(Microbatches& batch, std::vector<double> rows) {
  const double total = std::accumulate(rows.begin(), rows.end(), 0.0);
  batch.rows = total;
  for (double& share : rows) share /= total;
  batch.weights = std::move(rows);
}

// Shares of the batch. They are equal if the rows of a microbatch are unknown.
void set_mean_weights(Microbatches& batch, std::size_t count) {
  std::vector<double> rows;
  for (std::size_t m = 0; m < count; ++m) {
    std::optional<int64_t> found;
    if (m < batch.targets.size()) found = find_rows(batch.targets[m]);
    if (!found && m < batch.inputs.size()) found = find_rows(batch.inputs[m]);
    if (found) rows.push_back(static_cast<double>(*found));
  }
  const bool is_known =
      rows.size() == count && std::ranges::any_of(rows, [](double n) { return n > 0; });
  set_shares(batch, is_known ? std::move(rows) : std::vector<double>(count, 1.0));
  if (!is_known) batch.rows = 0;
}

void check_count(std::size_t got, std::size_t expected, std::string_view what) {
  require<ArgumentError>(got == 0 || got == expected,
                         "step: expected {} for each of {} microbatches, got {}", what, expected,
                         got);
}

void fill_weights(Microbatches& batch, std::size_t count, const StepOptions& options) {
  if (!options.weights.empty()) batch.weights = options.weights;
  check_count(batch.weights.size(), count, "a weight");
  for (const double weight : batch.weights) {
    require<ArgumentError>(std::isfinite(weight), "step: expected finite weights, got {}", weight);
  }
  if (!batch.weights.empty()) return;
  if (options.scale == LossScale::kSum) {
    batch.weights.assign(count, 1.0);
  } else if (!batch.inputs.empty() || !batch.targets.empty()) {
    set_mean_weights(batch, count);
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
                           "step: the batch has rows for only {} microbatches, expected {}",
                           batch.inputs.size(), count);
  }
  if (!target.isNone()) {
    SplitOptions split;
    if (options.target_spec) split.args_spec = ChunkSpec::tuple({*options.target_spec});
    std::vector<Arguments> targets = split_args_kwargs_into_chunks({target}, {}, count, split);
    require<ArgumentError>(static_cast<int64_t>(targets.size()) == count,
                           "step: the target has rows for only {} microbatches, expected {}",
                           targets.size(), count);
    for (Arguments& part : targets) batch.targets.push_back(std::move(part.args[0]));
  }
  if (options.weights.empty() && options.scale == LossScale::kMean && count > 1) {
    std::vector<double> rows;
    if (!batch.targets.empty()) rows = rows_of_parts(target, batch.targets);
    if (rows.empty() && !batch.inputs.empty()) rows = rows_of_inputs(args, kwargs, batch.inputs);
    if (!rows.empty()) set_shares(batch, std::move(rows));
  }
  fill_weights(batch, static_cast<std::size_t>(count), options);
  return batch;
}

int32_t num_microbatches(const Microbatches& batch, const StepOptions& options) {
  if (!batch.inputs.empty()) return static_cast<int32_t>(batch.inputs.size());
  if (!batch.targets.empty()) return static_cast<int32_t>(batch.targets.size());
  return options.microbatches;
}

Microbatches complete_batch(Microbatches batch, const StepOptions& options) {
  const auto count = static_cast<std::size_t>(std::max(num_microbatches(batch, options), 1));
  check_count(batch.targets.size(), count, "a target");
  fill_weights(batch, count, options);
  return batch;
}

}  // namespace stagecraft
