// StageOptions::around_backward and Stage::set_tensors.

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include "stagecraft/base/error.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/stage/stage.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

Stage product_stage(const at::Tensor& weight, StageOptions options = {}) {
  auto forward = [weight](const at::Tensor& x) { return at::mm(x, weight); };
  return {StageId(0), 2, stage_body(forward, {{"weight", weight}}), std::move(options)};
}

TEST(AroundBackward, KnowsKindAndTheLastOne) {
  std::vector<std::string> seen;
  const at::Tensor weight = at::ones({2, 2}).requires_grad_();
  Stage stage = product_stage(
      weight, {.around_backward = [&](const BackwardInfo& info, const std::function<void()>& run) {
        const char* const kinds[] = {"B", "I", "W"};
        seen.push_back(kinds[static_cast<int>(info.kind)] +
                       std::to_string(info.microbatch.value()) + (info.is_last ? " last" : ""));
        run();
      }});
  const at::Tensor x = at::ones({1, 2}).requires_grad_();
  for (int32_t m = 0; m < 3; ++m) stage.forward(MicrobatchId(m), {{x}, {}});
  stage.expect_backwards(3);
  const std::vector<c10::IValue> dy = {at::ones({1, 2})};
  stage.backward(MicrobatchId(0), dy);
  stage.backward_input(MicrobatchId(1), dy);
  stage.backward_weight(MicrobatchId(1));
  stage.backward(MicrobatchId(2), dy);
  EXPECT_THAT(seen, testing::ElementsAre("B0", "I1", "W1", "B2 last"));
  EXPECT_TRUE(at::equal(weight.grad(), at::full({2, 2}, 3.0)));
}

TEST(AroundBackward, MustCallItOnce) {
  Stage stage = product_stage(at::ones({2, 2}).requires_grad_(),
                              {.around_backward = [](const auto&, const auto&) {}});
  stage.forward(MicrobatchId(0), {{at::ones({1, 2})}, {}});
  EXPECT_ERROR(stage.backward(MicrobatchId(0), {at::ones({1, 2})}), ArgumentError, "0 times");
}

TEST(SetTensors, ReplacesWhatTheStageNames) {
  Stage stage = product_stage(at::ones({2, 2}).requires_grad_());
  const at::Tensor other = at::ones({3});
  stage.set_tensors({{"other", other}}, {});
  ASSERT_EQ(stage.parameters().size(), 1U);
  EXPECT_TRUE(stage.parameters()[0].second.is_same(other));
  EXPECT_ERROR(stage.set_tensors({{"a", other}, {"a", other}}, {}), ArgumentError, "\"a\"");
  stage.forward(MicrobatchId(0), {{at::ones({1, 2})}, {}});
  EXPECT_ERROR(stage.set_tensors({}, {}), ArgumentError, "wait for their backward");
}

}  // namespace
}  // namespace stagecraft
