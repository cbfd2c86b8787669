#include "stagecraft/graph/grouped_mm.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "stagecraft/base/error.h"
#include "stagecraft/graph/own_operators.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using at::Tensor;

constexpr int64_t kIn = 5;
constexpr int64_t kOut = 3;

Tensor call_grouped(const Tensor& input, const Tensor& weight, const Tensor& offs) {
  register_own_operators();
  torch::jit::Stack stack{input, weight, offs};
  c10::Dispatcher::singleton().findSchemaOrThrow(kGroupedMmOperator, "").callBoxed(stack);
  return stack.at(0).toTensor();
}

Tensor waves(std::vector<int64_t> sizes, double step) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return at::arange(count, at::kDouble).mul(step).sin().view(sizes);
}

/// Every row times the matrix of every group, and which of them count.
Tensor dense_grouped(const Tensor& input, const Tensor& weight, const std::vector<int64_t>& ends) {
  Tensor chosen = at::zeros({input.size(0), weight.size(0)}, at::kDouble);
  int64_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    chosen.slice(0, begin, ends[i]).select(1, static_cast<int64_t>(i)).fill_(1);
    begin = ends[i];
  }
  return at::einsum("ri,gio,rg->ro", {input, weight, chosen});
}

struct GroupedCase {
  int64_t rows;
  std::vector<int64_t> ends;
};
// Groups without rows at the beginning, in the middle and at the end, rows without a group, no
// rows.
const std::vector<GroupedCase> kGroupedCases = {
    {7, {2, 3, 7}}, {7, {0, 4, 7}}, {7, {3, 3, 7}}, {7, {5, 7, 7}},
    {7, {1, 2, 4}}, {7, {0, 0, 0}}, {7, {7, 7, 7}}, {0, {0, 0, 0}},
};

TEST(GroupedMm, EqualsADenseProduct) {
  for (const bool is_transposed : {false, true}) {
    for (const at::ScalarType type : {at::kInt, at::kLong}) {
      for (const GroupedCase& one : kGroupedCases) {
        const Tensor stored =
            is_transposed ? waves({3, kOut, kIn}, 0.7) : waves({3, kIn, kOut}, 0.7);
        const Tensor weight =
            (is_transposed ? stored.transpose(1, 2) : stored).detach().requires_grad_();
        const Tensor input = waves({one.rows, kIn}, 0.3).requires_grad_();
        const Tensor seed = waves({one.rows, kOut}, 1.1);
        const Tensor got = call_grouped(input, weight, at::tensor(one.ends, at::kLong).to(type));
        const Tensor expected = dense_grouped(input, weight, one.ends);
        EXPECT_TRUE(at::allclose(got, expected, 1e-12, 1e-12));
        const auto got_grads = torch::autograd::grad({got}, {input, weight}, {seed});
        const auto grads = torch::autograd::grad({expected}, {input, weight}, {seed});
        for (std::size_t i = 0; i < grads.size(); ++i) {
          EXPECT_TRUE(at::allclose(got_grads[i], grads[i], 1e-12, 1e-12)) << i;
        }
        EXPECT_TRUE(at::allclose(
            grouped_mm_weights(input.detach(), seed, at::tensor(one.ends, at::kLong).to(type)),
            grads[1], 1e-12, 1e-12));
        // The same layout, so that what is computed from the gradients has the same bits, too.
        EXPECT_EQ(got_grads[1].strides(), weight.strides());
      }
    }
  }
}

TEST(GroupedMm, TakesNoGroups) {
  const Tensor got = call_grouped(waves({4, kIn}, 0.3), at::empty({0, kIn, kOut}, at::kDouble),
                                  at::empty({0}, at::kInt));
  EXPECT_TRUE(got.equal(at::zeros({4, kOut}, at::kDouble)));
}

TEST(GroupedMm, KeepsNoHistoryThatIsNotNeeded) {
  const Tensor input = waves({4, kIn}, 0.3);
  const Tensor weight = waves({2, kIn, kOut}, 0.7).requires_grad_();
  const Tensor offs = at::tensor({1, 4}, at::kInt);
  EXPECT_FALSE(call_grouped(input, weight.detach(), offs).requires_grad());
  {
    const c10::NoGradGuard no_grad;
    EXPECT_FALSE(call_grouped(input, weight, offs).requires_grad());
  }
  call_grouped(input, weight, offs).sum().backward();
  EXPECT_TRUE(weight.grad().defined());
  EXPECT_FALSE(input.grad().defined());
}

TEST(GroupedMm, SeesChangesOfWhatItSaved) {
  const Tensor input = waves({4, kIn}, 0.3);
  const Tensor weight = waves({2, kIn, kOut}, 0.7).requires_grad_();
  const Tensor got = call_grouped(input, weight, at::tensor({1, 4}, at::kInt));
  input.add_(1);
  EXPECT_ERROR(got.sum().backward(), c10::Error, "modified by an inplace operation");
}

TEST(GroupedMm, HasNoSecondDerivative) {
  const Tensor input = waves({4, kIn}, 0.3).requires_grad_();
  const Tensor weight = waves({2, kIn, kOut}, 0.7).requires_grad_();
  const Tensor got = call_grouped(input, weight, at::tensor({1, 4}, at::kInt));
  EXPECT_ERROR(torch::autograd::grad({got.pow(2).sum()}, {input}, {}, true, true), c10::Error,
               "don't support automatic differentiation");
}

TEST(GroupedMm, RefusesWhatDoesNotFit) {
  const Tensor input = waves({4, kIn}, 0.3);
  const Tensor weight = waves({2, kIn, kOut}, 0.7);
  auto ends = [](std::vector<int64_t> values) { return at::tensor(values, at::kLong); };
  EXPECT_ERROR(
      call_grouped(input, weight[0], ends({1, 4})), ArgumentError,
      "takes rows with 2 dimensions, weights with 3 and group ends with 1, got 2, 2 and 1");
  EXPECT_ERROR(call_grouped(input, weight.transpose(1, 2), ends({1, 4})), ArgumentError,
               "rows [4, 5] and 2 group ends do not fit weights [2, 3, 5]");
  EXPECT_ERROR(call_grouped(input, weight, ends({1, 2, 4})), ArgumentError,
               "rows [4, 5] and 3 group ends do not fit weights [2, 5, 3]");
  EXPECT_ERROR(call_grouped(input, weight, ends({1, 4}).to(at::kFloat)), ArgumentError,
               "takes group ends as int32 or int64, got Float");
  EXPECT_ERROR(grouped_mm_weights(input, waves({3, kOut}, 1.1), ends({1, 4})), ArgumentError,
               "got 4 rows with 2 dimensions, 3 with 2, and 1");
  EXPECT_ERROR(grouped_mm_weights(input, waves({4, kOut}, 1.1), ends({3, 5})), ArgumentError,
               "a group of rows 3 to 5 is not in order within 4 rows");
  EXPECT_ERROR(call_grouped(input, weight, ends({3, 2})), ArgumentError,
               "a group of rows 3 to 2 is not in order within 4 rows");
  EXPECT_ERROR(call_grouped(input, weight, ends({3, 5})), ArgumentError,
               "a group of rows 3 to 5 is not in order within 4 rows");
}

}  // namespace
}  // namespace stagecraft
