#include "stagecraft/tree/own_backward.h"

#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/ones.h>

#include "stagecraft/stage/callable.h"
#include "stagecraft/stage/stage.h"

namespace stagecraft {
namespace {

/// Notes what the stage calls.
class Noted final : public OwnBackward {
 public:
  explicit Noted(std::vector<std::string>& calls) : calls_(calls) {}

  void begin(bool with_weights) override { calls_.push_back(with_weights ? "B" : "I"); }
  std::function<void()> take_weight_work() override {
    calls_.emplace_back("take");
    return [this] { calls_.emplace_back("work"); };
  }
  void begin_step() override { calls_.emplace_back("step"); }
  void release_kept() override { calls_.emplace_back("release"); }

 private:
  std::vector<std::string>& calls_;
};

using Calls = std::vector<std::string>;

TEST(OwnBackward, IsCalledAroundEachBackward) {
  Calls calls;
  StageBody body = stage_body([](const at::Tensor& x) { return x.mul(2); });
  body.own_backward = std::make_shared<Noted>(calls);
  StageOptions options;
  options.weight_work = [&]() -> std::function<void()> {
    ADD_FAILURE() << "the body's own backward takes precedence";
    return {};
  };
  Stage stage(StageId(0), 1, body, options);
  const at::Tensor x = at::ones({2}).requires_grad_();
  const MicrobatchId m(0);
  const c10::IValue grad = at::ones({2});

  stage.forward(m, {{x}, {}});
  EXPECT_EQ(stage.backward(m, {grad}).front().toTensor().sum().item().toDouble(), 4);
  EXPECT_EQ(calls, Calls({"B", "take", "work"}));
  calls.clear();
  stage.forward(m, {{x}, {}});
  stage.backward_input(m, {grad});
  EXPECT_EQ(calls, Calls({"I", "take"}));
  stage.backward_weight(m);
  EXPECT_EQ(calls, Calls({"I", "take", "work"}));
  calls.clear();
  stage.begin_step();
  stage.release_kept();
  EXPECT_EQ(calls, Calls({"step", "release"}));
}

TEST(OwnBackward, HasItsWorkOnceWhenTheForwardIsRunAgain) {
  Calls calls;
  StageBody body = stage_body([](const at::Tensor& x) { return x.mul(2); });
  body.own_backward = std::make_shared<Noted>(calls);
  Stage stage(StageId(0), 1, body, {.recompute = true});
  const MicrobatchId m(0);
  stage.forward(m, {{at::ones({2}).requires_grad_()}, {}});
  stage.backward_input(m, {c10::IValue(at::ones({2}))});
  stage.backward_weight(m);
  EXPECT_EQ(calls, Calls({"I", "take", "work"}));
}

}  // namespace
}  // namespace stagecraft
