#include "stagecraft/stage/around_forward.h"

#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include "stagecraft/base/error.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/stage/stage.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using Forward = std::function<void()>;

class Oops : public std::runtime_error {
 public:
  Oops() : std::runtime_error("oops") {}
};

StageBody doubling() {
  return stage_body([](const at::Tensor& x) { return x.mul(2); });
}

Stage make_stage(StageBody body, AroundForward around, bool recompute = false) {
  return {StageId(1),
          3,
          std::move(body),
          {.recompute = recompute, .around_forward = std::move(around)}};
}

TEST(AroundForward, SeesEveryForward) {
  std::vector<std::string> seen;
  for (const bool recompute : {false, true}) {
    Stage stage = make_stage(
        doubling(),
        [&](const ForwardInfo& info, const Forward& forward) {
          const std::string text =
              std::to_string(info.stage.value()) + "F" + std::to_string(info.microbatch.value()) +
              (info.is_training ? "" : " eval") + (info.is_recomputation ? " again" : "");
          seen.push_back(text);
          forward();
          seen.push_back("end " + text);
        },
        recompute);
    // Each microbatch has a shape of its own.
    for (int m = 0; m < 2; ++m) {
      const at::Tensor x = torch::ones({2 + m, 3}).requires_grad_();
      EXPECT_TRUE(at::equal(stage.forward(MicrobatchId(m), {{x}, {}}).toTensor(), x.mul(2)));
    }
    stage.backward(MicrobatchId(1), {torch::ones({3, 3})});
    stage.backward_input(MicrobatchId(0), {torch::ones({2, 3})});
    stage.backward_weight(MicrobatchId(0));
    stage.forward(MicrobatchId(5), {{torch::ones({1})}, {}}, {.is_training = false});
    std::vector<std::string> expected = {"1F0", "end 1F0", "1F1", "end 1F1"};
    if (recompute) {
      for (const char* text : {"1F1 again", "end 1F1 again", "1F0 again", "end 1F0 again"}) {
        expected.emplace_back(text);
      }
    }
    for (const char* text : {"1F5 eval", "end 1F5 eval"}) expected.emplace_back(text);
    EXPECT_EQ(std::exchange(seen, {}), expected);
  }
}

// Guards in the scope hold for the forward, and what it draws is not the forward's.
TEST(AroundForward, IsAScope) {
  const auto draws = stage_body([](const at::Tensor& x) { return at::rand_like(x).add(x); });
  Stage plain(StageId(1), 3, draws);
  Stage scoped = make_stage(draws, [](const ForwardInfo&, const Forward& forward) {
    at::rand({7});
    EXPECT_EQ(current_stage(), nullptr);
    forward();
  });
  const at::Tensor x = torch::ones({4});
  const ForwardOptions options{.is_training = false, .seed = 3};
  EXPECT_TRUE(at::equal(plain.forward(MicrobatchId(0), {{x}, {}}, options).toTensor(),
                        scoped.forward(MicrobatchId(0), {{x}, {}}, options).toTensor()));
  Stage without = make_stage(stage_body([](const at::Tensor& v) {
                               EXPECT_FALSE(at::GradMode::is_enabled());
                               return v.mul(2);
                             }),
                             [](const ForwardInfo&, const Forward& forward) {
                               const at::NoGradGuard no_grad;
                               forward();
                             });
  without.forward(MicrobatchId(0), {{x}, {}});
}

TEST(AroundForward, PassesExceptions) {
  const auto fails = stage_body([](const at::Tensor&) -> at::Tensor { throw Oops(); });
  bool has_ended = false;
  Stage stage = make_stage(fails, [&](const ForwardInfo&, const Forward& forward) {
    struct End {
      bool& flag;
      ~End() { flag = true; }
    } const end{has_ended};
    forward();
  });
  EXPECT_THROW(stage.forward(MicrobatchId(0), {{torch::ones({1})}, {}}), Oops);
  EXPECT_TRUE(has_ended);
  EXPECT_EQ(stage.num_pending(), 0U);
  // Its own, before or after the forward.
  for (const bool before : {false, true}) {
    Stage own = make_stage(doubling(), [&](const ForwardInfo&, const Forward& forward) {
      if (!before) forward();
      throw Oops();
    });
    EXPECT_THROW(own.forward(MicrobatchId(0), {{torch::ones({1})}, {}}), Oops);
    EXPECT_EQ(own.num_pending(), 0U);
  }
}

TEST(AroundForward, MustCallForwardOnceAndSwallowNothing) {
  const auto run = [](const StageBody& body, AroundForward around) {
    make_stage(body, std::move(around)).forward(MicrobatchId(2), {{torch::ones({1})}, {}});
  };
  EXPECT_ERROR(run(doubling(), [](const ForwardInfo&, const Forward&) {}), ArgumentError,
               "stage 1, microbatch 2: StageOptions::around_forward must call forward once, but "
               "called it 0 times");
  EXPECT_ERROR(run(doubling(),
                   [](const ForwardInfo&, const Forward& forward) {
                     forward();
                     try {
                       forward();
                     } catch (const Error&) {
                     }
                   }),
               ArgumentError, "called it 2 times");
  const auto fails = stage_body([](const at::Tensor&) -> at::Tensor { throw Oops(); });
  EXPECT_ERROR(run(fails,
                   [](const ForwardInfo&, const Forward& forward) {
                     try {
                       forward();
                     } catch (const Oops&) {
                     }
                   }),
               ArgumentError,
               "StageOptions::around_forward must pass on the exception of forward, but swallowed "
               "it: oops");
}

// What a scope gets may be kept: it has no reference to the forward that has ended.
TEST(AroundForward, MayKeepWhatItGets) {
  Forward kept;
  ForwardInfo info{};
  for (const bool fails : {false, true}) {
    const auto body = stage_body([fails](const at::Tensor& x) {
      if (fails) throw Oops();
      return x.mul(2);
    });
    Stage stage = make_stage(body, [&](const ForwardInfo& given, const Forward& forward) {
      info = given;
      kept = forward;
      forward();
    });
    try {
      stage.forward(MicrobatchId(4), {{torch::ones({1})}, {}});
    } catch (const Oops&) {
    }
    EXPECT_EQ(info.stage, StageId(1));
    EXPECT_EQ(info.microbatch, MicrobatchId(4));
    EXPECT_ERROR(kept(), ArgumentError,
                 "stage 1, microbatch 4: forward was called after StageOptions::around_forward had "
                 "returned");
  }
}

TEST(AroundForward, MustCallForwardOnItsThread) {
  Stage stage = make_stage(doubling(), [](const ForwardInfo&, const Forward& forward) {
    std::thread([&] {
      EXPECT_ERROR(forward(), ArgumentError,
                   "must call forward on the thread on which it is called");
    }).join();
    forward();
  });
  const at::Tensor x = torch::ones({2});
  EXPECT_TRUE(at::equal(stage.forward(MicrobatchId(0), {{x}, {}}).toTensor(), x.mul(2)));
}

// A copy that is kept does not keep the output.
TEST(AroundForward, DoesNotHoldTheOutput) {
  Forward kept;
  Stage stage = make_stage(doubling(), [&](const ForwardInfo&, const Forward& forward) {
    kept = forward;
    forward();
  });
  const c10::IValue output =
      stage.forward(MicrobatchId(0), {{torch::ones({2})}, {}}, {.is_training = false});
  EXPECT_EQ(output.toTensor().use_count(), 1U);
}

}  // namespace
}  // namespace stagecraft
