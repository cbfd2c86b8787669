#include "stagecraft/graph/grouped_mm.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"

namespace stagecraft {

namespace {

/// The row before which each group ends.
using GroupEnds = std::vector<int64_t>;

GroupEnds read_group_ends(const at::Tensor& input, const at::Tensor& offs) {
  require<ArgumentError>(offs.scalar_type() == at::kInt || offs.scalar_type() == at::kLong,
                         "grouped_mm takes group ends as int32 or int64, got {}",
                         c10::toString(offs.scalar_type()));
  // The sizes of the products must be known on the host. On a GPU this waits for the device once
  // for each call.
  const at::Tensor host = offs.to(at::kCPU, at::kLong).contiguous();
  const int64_t* first = host.const_data_ptr<int64_t>();
  GroupEnds ends(first, first + host.numel());
  int64_t begin = 0;
  for (const int64_t end : ends) {
    require<ArgumentError>(end >= begin && end <= input.size(0),
                           "grouped_mm: a group of rows {} to {} is not in order within {} rows",
                           begin, end, input.size(0));
    begin = end;
  }
  return ends;
}

GroupEnds read_group_ends(const at::Tensor& input, const at::Tensor& weight,
                          const at::Tensor& offs) {
  require<ArgumentError>(
      input.dim() == 2 && weight.dim() == 3 && offs.dim() == 1,
      "grouped_mm takes rows with 2 dimensions, weights with 3 and group ends with 1, got {}, {} "
      "and {}",
      input.dim(), weight.dim(), offs.dim());
  require<ArgumentError>(
      input.size(1) == weight.size(1) && offs.size(0) == weight.size(0),
      "grouped_mm: rows [{}, {}] and {} group ends do not fit weights [{}, {}, {}]", input.size(0),
      input.size(1), offs.size(0), weight.size(0), weight.size(1), weight.size(2));
  return read_group_ends(input, offs);
}

/// Calls work(group, first row, end) for all groups with rows, and idle(group) for the others.
template <typename Work, typename Idle>
void for_each_group(const GroupEnds& ends, const Work& work, const Idle& idle) {
  int64_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (ends[i] == begin) {
      idle(static_cast<int64_t>(i));
    } else {
      work(static_cast<int64_t>(i), begin, ends[i]);
    }
    begin = ends[i];
  }
}

/// Multiplies each group of rows by its matrix, into the same rows of `result`.
void multiply_rows(const at::Tensor& rows, const at::Tensor& matrices, const GroupEnds& ends,
                   const at::Tensor& result) {
  for_each_group(
      ends,
      [&](int64_t group, int64_t begin, int64_t end) {
        at::Tensor into = result.slice(0, begin, end);
        at::mm_out(into, rows.slice(0, begin, end), matrices.select(0, group));
      },
      [](int64_t) {});
  const int64_t last = ends.empty() ? 0 : ends.back();
  // Rows after the last group belong to no matrix, and the result was not initialised.
  if (last < result.size(0)) result.slice(0, last).zero_();
}

at::Tensor multiply_groups(const at::Tensor& input, const at::Tensor& weight,
                           const GroupEnds& ends) {
  at::Tensor output = at::empty({input.size(0), weight.size(2)}, input.options());
  multiply_rows(input, weight, ends, output);
  return output;
}

// The layout decides which kernel computes a product, and so its last bits. Gradients have the
// layouts of their values, as in Python.
at::Tensor grad_of_rows(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                        const GroupEnds& ends) {
  at::Tensor result = at::empty_like(input);
  multiply_rows(grad, weight.transpose(1, 2), ends, result);
  return result;
}

at::Tensor grad_of_weights(const at::Tensor& grad, const at::Tensor& input, const GroupEnds& ends,
                           at::Tensor result) {
  for_each_group(
      ends,
      [&](int64_t group, int64_t begin, int64_t end) {
        at::Tensor into = result.select(0, group);
        at::mm_out(into, input.slice(0, begin, end).t(), grad.slice(0, begin, end));
      },
      [&](int64_t group) { result.select(0, group).zero_(); });
  return result;
}

class GroupedMm : public torch::autograd::Function<GroupedMm> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const at::Tensor& offs) {
    const at::AutoDispatchBelowADInplaceOrView below;
    GroupEnds ends = read_group_ends(input, weight, offs);
    at::Tensor output = multiply_groups(input, weight, ends);
    context->save_for_backward({input, weight});
    // The ends on the host are kept, so the backward does not wait for the device again.
    context->saved_data["ends"] = std::move(ends);
    return output;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const GroupEnds ends = context->saved_data["ends"].toIntVector();
    at::Tensor of_rows;
    at::Tensor of_weights;
    // The backward I needs only the gradient of the rows, W only that of the weights.
    if (context->needs_input_grad(0)) of_rows = grad_of_rows(grads[0], saved[0], saved[1], ends);
    if (context->needs_input_grad(1)) {
      of_weights = grad_of_weights(grads[0], saved[0], ends, at::empty_like(saved[1]));
    }
    return {of_rows, of_weights, at::Tensor()};
  }
};

}  // namespace

at::Tensor grouped_mm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& offs) {
  return multiply_groups(input, weight, read_group_ends(input, weight, offs));
}

at::Tensor grouped_mm_weights(const at::Tensor& input, const at::Tensor& grad,
                              const at::Tensor& offs) {
  require<ArgumentError>(
      input.dim() == 2 && grad.dim() == 2 && offs.dim() == 1 && input.size(0) == grad.size(0),
      "grouped_mm_weights takes as many rows as gradients of rows, with 2 dimensions each, and "
      "group ends with 1, got {} rows with {} dimensions, {} with {}, and {}",
      input.dim() > 0 ? input.size(0) : 0, input.dim(), grad.dim() > 0 ? grad.size(0) : 0,
      grad.dim(), offs.dim());
  at::Tensor result = at::empty({offs.size(0), input.size(1), grad.size(1)}, input.options());
  return grad_of_weights(grad, input, read_group_ends(input, offs), std::move(result));
}

at::Tensor differentiable_grouped_mm(const at::Tensor& input, const at::Tensor& weight,
                                     const at::Tensor& offs) {
  return GroupedMm::apply(input, weight, offs);
}

}  // namespace stagecraft
