#include "tests/attention/packed_kernel.h"

#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "tests/attention/reference.h"

namespace stagecraft::reference {
namespace {

struct Arguments {
  at::Tensor cumulative_q;
  at::Tensor cumulative_kv;
  bool causal;
  double scale;
  std::optional<int64_t> left;
  std::optional<int64_t> right;
};

/// x [tokens, heads, size]; in float64.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const Arguments& arguments) {
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i + 1 < arguments.cumulative_q.size(0); ++i) {
    const auto part = [i](const at::Tensor& x, const at::Tensor& ends) {
      const auto begin = ends[i].item<int64_t>();
      return x.narrow(0, begin, ends[i + 1].item<int64_t>() - begin).transpose(0, 1).unsqueeze(0);
    };
    const at::Tensor part_q = part(q, arguments.cumulative_q);
    const at::Tensor part_k = part(k, arguments.cumulative_kv);
    const at::Tensor part_v = part(v, arguments.cumulative_kv);
    if (part_q.size(2) == 0) continue;
    if (part_k.size(2) == 0) {
      rows.push_back(at::zeros({part_q.size(2), q.size(1), v.size(2)}, at::kDouble));
      continue;
    }
    const at::Tensor row =
        at::arange(part_q.size(2)).unsqueeze(1).add(part_k.size(2) - part_q.size(2));
    const at::Tensor column = at::arange(part_k.size(2));
    at::Tensor keep = column.ge(0).logical_and(row.eq(row));
    if (arguments.causal) keep = keep.logical_and(column.le(row));
    if (arguments.right) keep = keep.logical_and(column.le(row.add(*arguments.right)));
    if (arguments.left) keep = keep.logical_and(column.ge(row.sub(*arguments.left)));
    rows.push_back(
        attention(part_q, part_k, part_v, keep, arguments.scale).squeeze(0).transpose(0, 1));
  }
  return at::cat(rows);
}

std::optional<int64_t> whole(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toInt());
}

void forward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  const std::vector<c10::IValue> x(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  torch::jit::drop(*stack, count);
  const Arguments arguments{x[3].toTensor(),  x[4].toTensor(), x[8].toBool(),
                            x[10].toDouble(), whole(x[11]),    whole(x[12])};
  const at::Tensor q = x[0].toTensor();
  PackedCall& call = packed_call();
  ++call.calls;
  call.segments = arguments.cumulative_q.size(0) - 1;
  call.heads = q.size(1);
  call.size = q.size(2);
  call.causal = arguments.causal;
  call.left = arguments.left;
  call.right = arguments.right;
  const at::Tensor out = attend(q.to(at::kDouble), x[1].toTensor().to(at::kDouble),
                                x[2].toTensor().to(at::kDouble), arguments);
  torch::jit::push(*stack, out.to(q.scalar_type()), at::zeros({1}), at::zeros({2}, at::kLong),
                   at::zeros({1}), at::zeros({1}));
}

void backward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  const std::vector<c10::IValue> x(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  torch::jit::drop(*stack, count);
  ++packed_call().backward_calls;
  const Arguments arguments{x[6].toTensor(),  x[7].toTensor(), x[11].toBool(),
                            x[14].toDouble(), whole(x[15]),    whole(x[16])};
  std::vector<at::Tensor> grads;
  {
    const at::AutoGradMode record(true);
    // The dispatcher has switched autograd off for this thread.
    const c10::impl::ForceDispatchKeyGuard with_autograd(c10::default_included_set,
                                                         c10::default_excluded_set);
    std::vector<at::Tensor> inputs;
    for (std::size_t i = 1; i <= 3; ++i) inputs.push_back(leaf(x[i].toTensor().to(at::kDouble)));
    const at::Tensor out = attend(inputs[0], inputs[1], inputs[2], arguments);
    grads = gradients(out, inputs, x[0].toTensor().to(at::kDouble));
  }
  const at::ScalarType type = x[1].toTensor().scalar_type();
  torch::jit::push(*stack, grads[0].to(type), grads[1].to(type), grads[2].to(type));
}

}  // namespace

PackedCall& packed_call() {
  static PackedCall call;
  return call;
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_flash_attention_forward", torch::CppFunction::makeFromBoxedFunction<&forward>());
  library.impl("_flash_attention_backward", torch::CppFunction::makeFromBoxedFunction<&backward>());
}

}  // namespace stagecraft::reference
