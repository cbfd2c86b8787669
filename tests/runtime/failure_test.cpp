#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/dropout.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/error.h"
#include "stagecraft/stage/stage_context.h"
#include "stagecraft/tree/tree.h"
#include "tests/runtime/faults.h"
#include "tests/runtime/harness.h"
#include "tests/support/expect_error.h"

// When things go wrong in one process (Pipeline); failure_spmd_test.cpp has the ranks that are on
// their own, failure_matrix_test.cpp every action of every schedule.

namespace stagecraft {
namespace {

constexpr double kAtOnce = 5;  // seconds; the timeout is 60, the goal 1, the machine may be busy

const StepOptions kNoOutputs{.outputs = OutputMode::kNone};

/// A pipeline whose steps can be made to fail.
class Failure : public testing::Test {
 protected:
  void make(const ScheduleCase& shape) {
    shape_ = shape;
    model_ = probed_chain(shape.stages(), probe_);
    wrap_model_();
    batch_ = random_batch(shape.microbatches, 3 * shape.microbatches + 1, 5, 3);
    pipeline_ = std::make_unique<Pipeline>(make_pipeline(model_, shape));
    pipeline_->step(batch_, kNoOutputs);
    take_grads(model_.bodies);
    expected_ = cut_grads(model_, batch_, pipeline_->recording().schedule);
    probe_->take_num_alive();
  }
  /// For what the model needs before a pipeline is made of it.
  std::function<void()> wrap_model_ = [] {};

  /// A step that is to fail: within seconds, without a trace.
  StageError fail() {
    const Stopwatch watch;
    const std::exception_ptr thrown = thrown_by([&] { pipeline_->step(batch_, kNoOutputs); });
    EXPECT_LT(watch.seconds(), kAtOnce);
    EXPECT_EQ(probe_->take_num_alive(), 0U);
    EXPECT_EQ(num_pending(*pipeline_), 0U);
    for (const at::Tensor& grad : take_grads(model_.bodies)) EXPECT_FALSE(grad.defined());
    if (is_a<StageError>(thrown)) return *find_stage_error(thrown);
    ADD_FAILURE() << "expected a StageError, got: " << message_of(thrown);
    return {{}, thrown};
  }
  /// The same objects, one step later.
  void expect_good_step() {
    pipeline_->step(batch_, kNoOutputs);
    EXPECT_EQ(difference("gradient", take_grads(model_.bodies), expected_), "");
    EXPECT_EQ(num_pending(*pipeline_), 0U);
    EXPECT_EQ(probe_->take_num_alive(), 0U);
  }

  static void expect_place(const StageError& error, int32_t rank, int32_t stage, int32_t microbatch,
                           const std::string& action) {
    EXPECT_EQ(error.place().rank, Rank(rank));
    EXPECT_EQ(error.place().stage, StageId(stage));
    EXPECT_EQ(error.place().microbatch, MicrobatchId(microbatch));
    EXPECT_EQ(error.place().action, action);
    EXPECT_THAT(error.what(),
                testing::HasSubstr("rank " + std::to_string(rank) + ", stage " +
                                   std::to_string(stage) + ", microbatch " +
                                   std::to_string(microbatch) + ", action " + action + ": "));
  }

  ScheduleCase shape_;
  std::shared_ptr<Probe> probe_ = std::make_shared<Probe>();
  TestModel model_;
  Microbatches batch_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<at::Tensor> expected_;
};

TEST_F(Failure, InAModulesForwardOnAnyRank) {
  for (const ScheduleCase& shape : training_cases(3)) {
    SCOPED_TRACE(to_string(shape));
    make(shape);
    for (int32_t s = 0; s < shape.stages(); ++s) {
      probe_->set([s](StageId stage, MicrobatchId m, at::Tensor&) {
        if (stage.value() == s && m.value() == 1) throw Boom();
      });
      const StageError error = fail();
      EXPECT_GT(pipeline_->report().not_run, 0) << "the recording is that of the failed step";
      const Rank rank = pipeline_->placement().get_rank(StageId(s));
      expect_place(error, rank.value(), s, 1, std::to_string(s) + "F1");
      EXPECT_TRUE(is_a<Boom>(error.cause()));
      EXPECT_THAT(error.what(), testing::EndsWith(": boom"));
      probe_->set({});
      expect_good_step();
    }
  }
}

// In the engine's hands: a hook that the user put on a tensor.
TEST_F(Failure, InABackwardOnAnyRank) {
  for (const ScheduleCase& shape : training_cases(2)) {
    SCOPED_TRACE(to_string(shape));
    make(shape);
    for (int32_t s = 0; s < shape.stages(); ++s) {
      probe_->set([s](StageId stage, MicrobatchId m, at::Tensor& output) {
        if (stage.value() == s && m.value() == 1) {
          output.register_hook([](const at::Tensor&) { throw Boom(); });
        }
      });
      const StageError error = fail();
      EXPECT_EQ(error.place().stage, StageId(s));
      EXPECT_EQ(error.place().microbatch, MicrobatchId(1));
      EXPECT_THAT(error.place().action, testing::ContainsRegex("^[0-9]+[BIW]1$"));
      EXPECT_TRUE(is_a<Boom>(error.cause())) << message_of(error.cause());
      probe_->set({});
      expect_good_step();
    }
  }
}

TEST_F(Failure, InTheLoss) {
  auto is_armed = std::make_shared<std::atomic<bool>>(false);
  wrap_model_ = [&] {
    model_.loss = [is_armed](const at::Tensor& y, const at::Tensor& target) {
      if (*is_armed) throw Boom();
      return at::mse_loss(y, target);
    };
  };
  for (const ScheduleCase& shape : training_cases(2)) {
    SCOPED_TRACE(to_string(shape));
    make(shape);
    *is_armed = true;
    const StageError error = fail();
    const Rank rank = pipeline_->placement().get_rank(StageId(shape.stages() - 1));
    expect_place(error, rank.value(), shape.stages() - 1, 0,
                 std::to_string(shape.stages() - 1) + "F0");
    EXPECT_TRUE(is_a<Boom>(error.cause()));
    *is_armed = false;
    expect_good_step();
  }
}

TEST_F(Failure, ALossThatIsNoScalar) {
  auto is_armed = std::make_shared<std::atomic<bool>>(false);
  wrap_model_ = [&] {
    model_.loss = [is_armed](const at::Tensor& y, const at::Tensor& target) {
      return *is_armed ? y.sub(target) : at::mse_loss(y, target);
    };
  };
  make({"1F1B", 2, 1, 4});
  *is_armed = true;
  const StageError error = fail();
  expect_place(error, 1, 1, 0, "1F0");
  EXPECT_TRUE(is_a<ArgumentError>(error.cause()));
  *is_armed = false;
  expect_good_step();
}

TEST_F(Failure, InAnObserverAtTheEndOfAnAction) {
  make({"InterleavedZeroBubble", 2, 2, 4});
  Action at;
  std::atomic<bool> is_armed = false;
  pipeline_->callbacks().observe([&](Rank, Action action, ActionPhase phase) {
    if (is_armed && phase == ActionPhase::kEnd && action == at) throw Boom();
  });
  const Schedule schedule = pipeline_->recording().schedule;
  for (const ActionList& list : schedule.lists()) {
    at = list[list.size() / 2];
    is_armed = true;
    const StageError error = fail();
    EXPECT_EQ(error.place().action, to_string(at));
    EXPECT_TRUE(is_a<Boom>(error.cause()));
    is_armed = false;
    expect_good_step();
  }
}

TEST_F(Failure, InAHandler) {
  for (const ActionType type :
       {ActionType::kForward, ActionType::kBackwardInput, ActionType::kBackwardWeight,
        ActionType::kUnshard, ActionType::kReshard, ActionType::kReduceGrad}) {
    SCOPED_TRACE(to_string(type));
    make({"InterleavedZeroBubble", 2, 2, 4});
    std::atomic<int> calls = 0;
    pipeline_->callbacks().replace(type, [&](ActionContext& context) {
      context.run_all();
      if (context.rank() == Rank(1) && ++calls == 2) throw Boom();
    });
    const StageError error = fail();
    EXPECT_EQ(error.place().rank, Rank(1));
    EXPECT_THAT(error.place().action, testing::HasSubstr(std::string(to_string(type))));
    EXPECT_TRUE(is_a<Boom>(error.cause()));
    pipeline_->callbacks().replace(type, {});
    expect_good_step();
  }
}

// The text of the whole overlap: at no point of it would one part alone be right.
TEST_F(Failure, InAHandlerOfAnOverlap) {
  for (const int run_before : {0, 1, 2}) {
    make({"DualPipeV", 2, 2, 4});
    std::atomic<bool> is_armed = true;
    pipeline_->callbacks().replace(ActionType::kOverlap, [&](ActionContext& context) {
      for (int part = 0; part < run_before; ++part) context.run(static_cast<std::size_t>(part));
      if (is_armed.exchange(false)) throw Boom();
      for (int part = run_before; part < 2; ++part) context.run(static_cast<std::size_t>(part));
    });
    const StageError error = fail();
    EXPECT_THAT(error.place().action, testing::ContainsRegex("^\\(.*F.;.*B.\\)OVERLAP_F_B$"));
    EXPECT_TRUE(is_a<Boom>(error.cause()));
    pipeline_->callbacks().replace(ActionType::kOverlap, {});
    expect_good_step();
  }
}

TEST_F(Failure, InTheUsersHooks) {
  auto failing = std::make_shared<std::atomic<int>>(0);
  wrap_model_ = [&] {
    model_.options.assign(model_.bodies.size(), {});
    auto hook = [failing](int number) {
      return [failing, number] {
        if (*failing == number) throw Boom();
      };
    };
    model_.options[1].on_unshard = hook(1);
    model_.options[1].on_reshard = hook(2);
    model_.options[1].on_reduce_grad = hook(3);
  };
  make({"1F1B", 2, 1, 4});
  const std::vector<std::string> expected = {"1UNSHARD", "1RESHARD", "1REDUCE_GRAD"};
  for (int i = 0; i < 3; ++i) {
    *failing = i + 1;
    const StageError error = fail();
    EXPECT_EQ(error.place().stage, StageId(1));
    EXPECT_EQ(error.place().action, expected[static_cast<std::size_t>(i)]);
    EXPECT_THAT(error.what(), testing::HasSubstr("rank 1, stage 1, action "));
    *failing = 0;
    expect_good_step();
  }
}

// As in a hook that reduces gradients over replicas: a peer of theirs is none of ours.
TEST_F(Failure, PeerErrorOfAnotherWorldIsAFailureOfThisRank) {
  auto kind = std::make_shared<std::atomic<int>>(0);
  wrap_model_ = [&] {
    model_.options.assign(model_.bodies.size(), {});
    for (StageOptions& options : model_.options) {
      options.on_reduce_grad = [kind] {
        if (*kind == 1) throw PeerError("rank 7: lost", Rank(7));
        if (*kind == 2) throw TimeoutError("waited for a replica");
      };
    }
  };
  for (const int each : {1, 2}) {
    make({"1F1B", 3, 1, 4});
    *kind = each;
    const Stopwatch watch;
    const std::exception_ptr thrown = thrown_by([&] { pipeline_->step(batch_, kNoOutputs); });
    EXPECT_LT(watch.seconds(), kAtOnce);
    EXPECT_THAT(message_of(thrown), testing::HasSubstr("REDUCE_GRAD"));
    EXPECT_THAT(message_of(thrown), testing::HasSubstr(each == 1 ? "lost" : "replica"));
    take_grads(model_.bodies);
    probe_->take_num_alive();
    *kind = 0;
    expect_good_step();
  }
}

TEST_F(Failure, AnythingCanBeThrown) {
  make({"GPipe", 2, 1, 3});
  probe_->set([](StageId stage, MicrobatchId m, at::Tensor&) {
    if (stage.value() == 1 && m.value() == 2) throw 42;  // NOLINT: that is the point
  });
  const StageError error = fail();
  expect_place(error, 1, 1, 2, "1F2");
  EXPECT_TRUE(is_a<int>(error.cause()));
  probe_->set({});
  expect_good_step();
}

TEST_F(Failure, OnSeveralRanksAtOnce) {
  make({"GPipe", 3, 1, 6});
  probe_->set([](StageId stage, MicrobatchId m, at::Tensor&) {
    if (m.value() + stage.value() == 4) throw Boom();
  });
  for (int i = 0; i < 20; ++i) {
    const StageError error = fail();
    EXPECT_EQ(error.place().microbatch.value() + error.place().stage.value(), 4);
    EXPECT_TRUE(is_a<Boom>(error.cause()));
  }
  probe_->set({});
  expect_good_step();
}

// One that is inside user code hears of it as soon as that returns.
TEST_F(Failure, WhileAnotherRankIsInUserCode) {
  make({"GPipe", 2, 1, 2});
  std::promise<void> failed;
  std::shared_future<void> has_failed = failed.get_future().share();
  std::promise<void> entered;
  std::shared_future<void> has_entered = entered.get_future().share();
  std::atomic<int> late_forwards = 0;
  probe_->set([&](StageId stage, MicrobatchId m, at::Tensor&) {
    if (stage.value() == 1 && m.value() == 0) {
      entered.set_value();
      EXPECT_EQ(has_failed.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    } else if (stage.value() == 1) {
      ++late_forwards;
    } else if (m.value() == 1) {
      EXPECT_EQ(has_entered.wait_for(std::chrono::seconds(20)), std::future_status::ready);
      failed.set_value();
      throw Boom();
    }
  });
  expect_place(fail(), 0, 0, 1, "0F1");
  EXPECT_EQ(late_forwards, 0);
  probe_->set({});
  expect_good_step();
}

TEST_F(Failure, InAnEvaluation) {
  make({"ZBVZeroBubble", 2, 2, 4});
  probe_->set([](StageId stage, MicrobatchId m, at::Tensor&) {
    if (stage.value() == 2 && m.value() == 3) throw Boom();
  });
  EXPECT_ERROR(pipeline_->eval(batch_), StageError,
               "rank 1, stage 2, microbatch 3, action 2F3: boom");
  EXPECT_EQ(probe_->take_num_alive(), 0U);
  EXPECT_EQ(num_pending(*pipeline_), 0U);
  probe_->set({});
  expect_good_step();
}

TEST_F(Failure, WhileMemoryIsMeasured) {
  make({"1F1B", 2, 1, 4});
  probe_->set([](StageId stage, MicrobatchId m, at::Tensor&) {
    if (stage.value() == 0 && m.value() == 2) throw Boom();
  });
  EXPECT_THROW(pipeline_->step(batch_, {.measure_memory = true}), StageError);
  probe_->set({});
  probe_->take_num_alive();
  expect_good_step();
  pipeline_->step(batch_, {.outputs = OutputMode::kNone, .measure_memory = true});
  EXPECT_EQ(difference("gradient", take_grads(model_.bodies), expected_), "");
}

// Only a handler of one's own can make gradients that do not fit: shapes themselves are free.
TEST_F(Failure, AGradientOfAnotherShape) {
  for (const bool split : {false, true}) {
    make(split ? ScheduleCase{"InterleavedZeroBubble", 2, 1, 4} : ScheduleCase{"1F1B", 2, 1, 4});
    const ActionType type = split ? ActionType::kBackwardInput : ActionType::kBackward;
    pipeline_->callbacks().replace(type, [split](ActionContext& context) {
      std::vector<c10::IValue> grads =
          split ? context.stage().backward_input(context.microbatch(), context.take_output_grads(),
                                                 context.loss_weight())
                : context.stage().backward(context.microbatch(), context.take_output_grads(),
                                           context.loss_weight());
      if (context.rank() == Rank(1) && context.microbatch().value() == 2) {
        grads[0] = at::ones({2, 2});
      }
      context.finish_backward(std::move(grads));
    });
    const StageError error = fail();
    expect_place(error, 0, 0, 2, split ? "0I2" : "0B2");
    EXPECT_TRUE(is_a<MetadataError>(error.cause())) << message_of(error.cause());
    EXPECT_THAT(error.what(), testing::HasSubstr("expected [3, 5]"));
    pipeline_->callbacks().replace(type, {});
    expect_good_step();
  }
}

TEST_F(Failure, AGradientOfAnotherStructure) {
  make({"1F1B", 2, 1, 4});
  pipeline_->callbacks().replace(ActionType::kBackward, [](ActionContext& context) {
    std::vector<c10::IValue> grads = context.stage().backward(
        context.microbatch(), context.take_output_grads(), context.loss_weight());
    if (context.rank() == Rank(1)) grads[0] = tree::tuple({grads[0], grads[0]});
    context.finish_backward(std::move(grads));
  });
  const StageError error = fail();
  expect_place(error, 0, 0, 0, "0B0");
  EXPECT_TRUE(is_a<MetadataError>(error.cause())) << message_of(error.cause());
  pipeline_->callbacks().replace(ActionType::kBackward, {});
  expect_good_step();

  pipeline_->callbacks().replace(ActionType::kBackward, [](ActionContext& context) {
    std::vector<c10::IValue> grads = context.stage().backward(
        context.microbatch(), context.take_output_grads(), context.loss_weight());
    if (context.rank() == Rank(1)) grads.push_back(grads[0]);
    context.finish_backward(std::move(grads));
  });
  const StageError too_many = fail();
  expect_place(too_many, 1, 1, 0, "1B0");
  EXPECT_TRUE(is_a<ArgumentError>(too_many.cause()));
  pipeline_->callbacks().replace(ActionType::kBackward, {});
  expect_good_step();
}

TEST_F(Failure, ABatchThatCannotBeCut) {
  make({"1F1B", 2, 1, 4});
  const at::Tensor x = random_tensor({3, 5}, 1);
  EXPECT_THROW(pipeline_->step({x}, {}, x, {.microbatches = 4}), ArgumentError);
  EXPECT_THROW(pipeline_->step({x}, {}, x, {.microbatches = 0}), ArgumentError);
  {
    const c10::AutoGradMode off(false);
    EXPECT_THROW(pipeline_->step(batch_), ArgumentError);
  }
  expect_good_step();
}

TEST_F(Failure, GradientsOfEarlierStepsStayThere) {
  make({"1F1B", 2, 1, 4});
  pipeline_->step(batch_, kNoOutputs);
  probe_->take_num_alive();
  probe_->set([](StageId stage, MicrobatchId m, at::Tensor&) {
    if (stage.value() == 0 && m.value() == 0) throw Boom();
  });
  EXPECT_THROW(pipeline_->step(batch_, kNoOutputs), StageError);
  // Nothing had been added yet.
  EXPECT_EQ(difference("gradient", take_grads(model_.bodies), expected_), "");
  probe_->set({});
  probe_->take_num_alive();
  expect_good_step();
}

// The number of threads once it is `expected`, or after two seconds: the kernel lists a thread for
// a moment after it was joined.
std::size_t settled_threads(std::size_t expected) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (num_threads() != expected && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return num_threads();
}

TEST_F(Failure, NoThreadIsLeftBehind) {
  make({"1F1B", 2, 1, 4});  // whatever torch starts for itself is there after this
  pipeline_.reset();
  const std::size_t before = settled_threads(1);
  for (const ScheduleCase& shape : training_cases(3)) {
    make(shape);
    EXPECT_EQ(num_threads(), before + 3);
    probe_->set([](StageId, MicrobatchId m, at::Tensor&) {
      if (m.value() == 1) throw Boom();
    });
    EXPECT_THROW(pipeline_->step(batch_, kNoOutputs), StageError);
    probe_->set({});
    pipeline_.reset();
    EXPECT_EQ(settled_threads(before), before);
    take_grads(model_.bodies);
  }
}

TEST_F(Failure, OnOneRankWithoutThreads) {
  make({"Interleaved1F1B", 1, 2, 3});
  probe_->set([](StageId stage, MicrobatchId m, at::Tensor&) {
    if (stage.value() == 1 && m.value() == 2) throw Boom();
  });
  expect_place(fail(), 0, 1, 2, "1F2");
  probe_->set({});
  expect_good_step();
}

// Random numbers depend on how many steps succeeded, so a failed one can be repeated.
TEST(FailureAndRandomness, AFailedStepDrawsNothing) {
  std::atomic<bool> is_armed = false;
  TestModel model = chain_model(2);
  for (StageBody& body : model.bodies) {
    body.forward = [inner = body.forward, &is_armed](const Args& args, const Kwargs& kwargs) {
      if (is_armed && current_stage()->microbatch.value() == 2) throw Boom();
      return c10::IValue(at::dropout(inner(args, kwargs).toTensor(), 0.5, true));
    };
  }
  const Microbatches batch = random_batch(4, 13, 5, 3);
  Pipeline pipeline = make_pipeline(model, {.schedule = "1F1B", .seed = 11});
  EXPECT_EQ(check_step(pipeline, model, batch, {.seed = 11, .step = 0}), "");
  is_armed = true;
  EXPECT_THROW(pipeline.step(batch), StageError);
  is_armed = false;
  EXPECT_EQ(check_step(pipeline, model, batch, {.seed = 11, .step = 1}), "");
}

}  // namespace
}  // namespace stagecraft
