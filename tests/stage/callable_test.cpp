#include "stagecraft/stage/callable.h"

#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "stagecraft/base/error.h"
#include "stagecraft/stage/stage.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

struct MaskedImpl : torch::nn::Module {
  MaskedImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask, std::optional<double> scale) {
    at::Tensor y = linear(x);
    if (mask.defined()) y = y * mask;
    return scale ? y * *scale : y;
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Masked);

TEST(StageBody, OfAModuleHasItsParametersAndItsForward) {
  Masked module;
  const StageBody body = stage_body(module, {"x", "mask", "scale"});
  ASSERT_EQ(body.parameters.size(), 2u);
  EXPECT_EQ(body.parameters[0].first, "linear.weight");
  const at::Tensor x = torch::randn({2, 4});
  const at::Tensor mask = torch::zeros({2, 4});
  EXPECT_TRUE(torch::equal(body.forward({x}, {}).toTensor(), module->linear(x)));
  EXPECT_TRUE(
      torch::equal(body.forward({x}, {{"mask", mask}}).toTensor(), mask * module->linear(x)));
  EXPECT_TRUE(torch::equal(body.forward({x}, {{"scale", 2}}).toTensor(), module->linear(x) * 2));
}

TEST(StageBody, TakesHoldersSharedPointersAndSequentials) {
  const at::Tensor x = torch::randn({2, 4});
  torch::nn::Linear holder(4, 3);
  EXPECT_TRUE(torch::equal(stage_body(holder).forward({x}, {}).toTensor(), holder(x)));
  EXPECT_TRUE(torch::equal(stage_body(holder.ptr()).forward({x}, {}).toTensor(), holder(x)));
  torch::nn::Sequential sequential(holder, torch::nn::ReLU());
  const StageBody body = stage_body(sequential);
  EXPECT_EQ(body.parameters.size(), 2u);
  EXPECT_TRUE(torch::equal(body.forward({x}, {}).toTensor(), torch::relu(holder(x))));
}

TEST(StageBody, OfAFunctionConvertsItsArguments) {
  const StageBody body =
      stage_body([](const at::Tensor& x, int64_t n, bool flag, std::string text,
                    const std::vector<at::Tensor>& more, const c10::IValue& any) {
        return std::make_tuple(x * n, static_cast<int64_t>(more.size()), flag, text + "!",
                               any.isNone());
      });
  const auto result = body.forward(
      {torch::ones({2}), 3, true, "a",
       c10::ivalue::Tuple::create({torch::ones({1}), torch::ones({1})}), c10::IValue()},
      {});
  const std::vector<c10::IValue> values = outputs_of(result);
  EXPECT_TRUE(torch::equal(values[0].toTensor(), torch::full({2}, 3.0F)));
  EXPECT_EQ(values[1].toInt(), 2);
  EXPECT_TRUE(values[2].toBool());
  EXPECT_EQ(values[3].toStringRef(), "a!");
  EXPECT_TRUE(values[4].toBool());
}

TEST(StageBody, RefusesArgumentsThatDoNotFit) {
  const StageBody body =
      stage_body([](const at::Tensor& x, int64_t n) { return x * n; }, {}, {"x", "n"});
  const at::Tensor x = torch::ones({2});
  EXPECT_THROW(body.forward({x, 1, 2}, {}), ArgumentError);
  EXPECT_THROW(body.forward({x}, {}), ArgumentError);  // an int has no default
  EXPECT_THROW(body.forward({1, 1}, {}), ArgumentError);
  EXPECT_THROW(body.forward({x}, {{"m", 1}}), ArgumentError);
  EXPECT_THROW(body.forward({x, 1}, {{"n", 1}}), ArgumentError);
  EXPECT_NO_THROW(body.forward({x}, {{"n", 1}}));
}

TEST(Stage, RefusesCallsOutOfOrder) {
  EXPECT_THROW(Stage(StageId(2), 2, stage_body([](const at::Tensor& x) { return x; })),
               ArgumentError);
  EXPECT_THROW(Stage(StageId(0), 1, StageBody{}), ArgumentError);
  Stage stage(StageId(0), 1, stage_body([](const at::Tensor& x) { return x * 2; }));
  const at::Tensor x = torch::ones({2}, torch::requires_grad());
  EXPECT_THROW(stage.backward(MicrobatchId(0), {x}), ArgumentError);
  EXPECT_THROW(stage.backward_weight(MicrobatchId(0)), ArgumentError);
  stage.forward(MicrobatchId(0), {{x}, {}});
  EXPECT_THROW(stage.forward(MicrobatchId(0), {{x}, {}}), ArgumentError);
  EXPECT_THROW(stage.backward_weight(MicrobatchId(0)), ArgumentError);
  EXPECT_THROW(stage.backward(MicrobatchId(0), {x, x}), ArgumentError);
  EXPECT_THROW(stage.set_loss(MicrobatchId(0), x), ArgumentError);
  EXPECT_EQ(stage.num_pending(), 1u);
  stage.backward(MicrobatchId(0), {torch::ones({2})});
  EXPECT_EQ(stage.num_pending(), 0u);
}

TEST(Stage, TreesCrossABorderWithGradientsForTheirTensors) {
  Stage stage(StageId(0), 1, stage_body([](const Args& args, const Kwargs&) {
                const auto dict = args[0].toGenericDict();
                const at::Tensor a = dict.at("a").toTensor();
                const at::Tensor ids = dict.at("ids").toTensor();
                return c10::IValue(c10::ivalue::Tuple::create({a * 3, ids, c10::IValue("text")}));
              }));
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("ids", torch::arange(3));
  dict.insert("a", torch::ones({2}, torch::requires_grad()));
  const auto output = stage.forward(MicrobatchId(0), {{dict}, {}});
  EXPECT_EQ(outputs_of(output).size(), 3u);
  const auto grads =
      stage.backward(MicrobatchId(0), {torch::ones({2}), c10::IValue(), c10::IValue()});
  ASSERT_TRUE(grads[0].isTuple());
  const auto& entries = grads[0].toTupleRef().elements();
  EXPECT_TRUE(entries[0].isNone());
  EXPECT_TRUE(torch::equal(entries[1].toTensor(), torch::full({2}, 3.0F)));
}

}  // namespace
}  // namespace stagecraft
