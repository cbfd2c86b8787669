// Steps as graphs, against a device that is not there: tests/support/fake_graph_device.h.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/tanh.h>

#include "stagecraft/base/error.h"
#include "stagecraft/base/log.h"
#include "stagecraft/base/wait_tick.h"
#include "stagecraft/runtime/launch/graph_cache.h"
#include "stagecraft/runtime/launch/step_order.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/stage/stage_context.h"
#include "tests/runtime/harness.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_graph_device.h"
#include "tests/support/models.h"

namespace stagecraft {
namespace {

constexpr uint64_t kSeed = 5;

TEST(GraphCache, ReleasesTheLeastRecentlyUsedEntry) {
  detail::GraphCache<int, std::string> cache(2);
  cache.add(1, "one");
  cache.add(2, "two");
  ASSERT_NE(cache.find(1), nullptr);
  cache.add(3, "three");
  EXPECT_EQ(cache.find(2), nullptr);
  ASSERT_NE(cache.find(1), nullptr);
  EXPECT_EQ(*cache.find(3), "three");
  cache.release(1);
  EXPECT_EQ(cache.find(1), nullptr);
  EXPECT_EQ(cache.size(), 1U);
}

TEST(StepOrder, RespectsListsAndNeedsOfEverySchedule) {
  for (const ScheduleCase& each : training_cases(4)) {
    SCOPED_TRACE(to_string(each));
    const StageGraph graph = StageGraph::chain(each.stages());
    const auto schedule = each.source().training(each.microbatches, graph);
    const auto order = detail::one_thread_order(*schedule, graph);
    std::vector<std::size_t> next(4, 0);
    std::size_t slots = 0;
    for (const detail::RankSlot& slot : order) {
      EXPECT_EQ(slot.offset, next[slot.rank.position()]);
      next[slot.rank.position()] +=
          1 + static_cast<std::size_t>(schedule->actions(slot.rank)[slot.offset].num_parts());
      ++slots;
    }
    EXPECT_EQ(slots, order.size());
    for (Rank rank(0); rank.value() < 4; ++rank) {
      EXPECT_EQ(next[rank.position()], schedule->actions(rank).size());
    }
  }
}

// Copies: the next replay writes to the same memory.
std::vector<at::Tensor> copy_grads(const TestModel& model) {
  std::vector<at::Tensor> grads = take_grads(model.bodies);
  for (at::Tensor& grad : grads) grad = grad.clone();
  return grads;
}

class Launch : public testing::Test {
 protected:
  FakeGraphDevices devices_;
};

TEST_F(Launch, ReplayedStepsHaveTheBitsOfTheCutLoopInEverySchedule) {
  for (const int32_t ranks : {1, 2, 4}) {
    for (const ScheduleCase& each : training_cases(ranks)) {
      SCOPED_TRACE(to_string(each));
      const TestModel model = chain_model(each.stages());
      Pipeline pipeline = make_pipeline(model, each, {.seed = kSeed, .graphs = GraphMode::kOn});
      for (uint64_t step = 0; step < 5; ++step) {
        const Microbatches batch = random_batch(each.microbatches, 3 * each.microbatches, 5, step);
        EXPECT_EQ(check_step(pipeline, model, batch, {kSeed, step}), "") << step;
      }
      EXPECT_EQ(pipeline.launches().run, 2);
      EXPECT_EQ(pipeline.launches().captured, 1);
      EXPECT_EQ(pipeline.launches().replayed, 3);
    }
  }
}

TEST_F(Launch, GradientsOfSeveralStepsAddUpInPlace) {
  const TestModel model = chain_model(2);
  const auto train = [&](GraphMode mode) {
    Pipeline pipeline = make_pipeline(model, {.ranks = 2, .seed = kSeed, .graphs = mode});
    std::vector<std::vector<at::Tensor>> updates;
    for (uint64_t update = 0; update < 5; ++update) {
      for (uint64_t part = 0; part < 3; ++part) {
        pipeline.step(random_batch(4, 9, 5, 10 * update + part));
      }
      updates.push_back(copy_grads(model));
    }
    return std::pair(std::move(updates), pipeline.launches());
  };
  const auto [expected, none] = train(GraphMode::kOff);
  const auto [got, counts] = train(GraphMode::kOn);
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(difference("grads", expected[i], got[i]), "");
  EXPECT_EQ(none.replayed, 0);
  EXPECT_GE(counts.replayed, 5);
}

TEST_F(Launch, WeightsThatTheOptimizerChangesAreRead) {
  const TestModel model = chain_model(2);
  Pipeline pipeline = make_pipeline(model, {.ranks = 2, .seed = kSeed, .graphs = GraphMode::kOn});
  for (uint64_t step = 0; step < 6; ++step) {
    const Microbatches batch = random_batch(4, 11, 5, step);
    EXPECT_EQ(check_step(pipeline, model, batch, {kSeed, step}), "") << step;
    for (const StageParameter& each : parameters_of(model.bodies)) each.tensor.detach().mul_(0.9);
  }
  EXPECT_EQ(pipeline.launches().replayed, 4);
}

// A model with dropout in each stage.
TestModel dropout_model(int32_t stages) {
  TestModel model = chain_model(stages);
  for (StageBody& body : model.bodies) {
    body.forward = [inner = body.forward](const Args& args, const Kwargs& kwargs) -> c10::IValue {
      return at::dropout(inner(args, kwargs).toTensor(), 0.4, true);
    };
  }
  return model;
}

TEST_F(Launch, RandomNumbersOfAReplayAreThoseOfTheStep) {
  for (const int32_t ranks : {1, 2, 4}) {
    const TestModel model = dropout_model(ranks);
    for (const bool recompute : {false, true}) {
      Pipeline pipeline =
          make_pipeline(model, {.ranks = ranks, .seed = kSeed, .graphs = GraphMode::kOn});
      for (StageId s(0); s.value() < ranks; ++s) pipeline.stage(s).set_recompute(recompute);
      for (uint64_t step = 0; step < 6; ++step) {
        const Microbatches batch = random_batch(4, 11, 5, step);
        EXPECT_EQ(check_step(pipeline, model, batch, {kSeed, step}), "") << ranks << " " << step;
      }
      EXPECT_EQ(pipeline.launches().replayed, 4);
    }
  }
}

TEST_F(Launch, ChangingShapesGiveOtherGraphsUpToALimit) {
  const int64_t before = FakeGraphDevices::num_graphs();
  const TestModel model = chain_model(2);
  {
    Pipeline pipeline = make_pipeline(
        model, {.ranks = 2, .seed = kSeed, .graphs = GraphMode::kOn, .max_graphs = 2});
    uint64_t step = 0;
    for (int round = 0; round < 4; ++round) {
      for (const int64_t rows : {7, 8, 9}) {
        for (const int32_t microbatches : {2, 5}) {
          for (int repeat = 0; repeat < 4; ++repeat, ++step) {
            const Microbatches batch = random_batch(microbatches, rows, 5, step);
            ASSERT_EQ(check_step(pipeline, model, batch, {kSeed, step}), "") << step;
          }
        }
      }
    }
    EXPECT_EQ(pipeline.launches().graphs, 2);
    EXPECT_EQ(FakeGraphDevices::num_graphs() - before, 2);
    EXPECT_EQ(pipeline.launches().captured, 24);
  }
  EXPECT_EQ(FakeGraphDevices::num_graphs(), before);
}

TEST_F(Launch, EvalIsReplayedToo) {
  const TestModel model = chain_model(2);
  Pipeline pipeline = make_pipeline(model, {.ranks = 2, .graphs = GraphMode::kOn});
  Pipeline plain = make_pipeline(model, {.ranks = 2, .graphs = GraphMode::kOff});
  std::vector<StepResult> kept;
  std::vector<StepResult> expected;
  for (uint64_t step = 0; step < 5; ++step) {
    const Microbatches batch = random_batch(4, 11, 5, step);
    kept.push_back(pipeline.eval(batch));
    expected.push_back(plain.eval(batch));
  }
  // Results of earlier steps are not overwritten.
  for (std::size_t i = 0; i < kept.size(); ++i) {
    EXPECT_EQ(difference("output", expected[i].output, kept[i].output), "");
    EXPECT_EQ(difference("losses", expected[i].losses, kept[i].losses), "");
  }
  EXPECT_EQ(pipeline.launches().replayed, 3);
}

TEST_F(Launch, BatchesThatTheStepSplitsAreCopiedIntoTheGraph) {
  const TestModel model = chain_model(2);
  Pipeline pipeline = make_pipeline(model, {.ranks = 2, .graphs = GraphMode::kOn});
  Pipeline plain = make_pipeline(model, {.ranks = 2, .graphs = GraphMode::kOff});
  for (uint64_t step = 0; step < 6; ++step) {
    const at::Tensor part = random_tensor({11, 5}, step);
    const at::Tensor y = random_tensor({11, 5}, 100 + step);
    const StepResult got = pipeline.step({part}, {}, y, {.microbatches = 4});
    const std::vector<at::Tensor> grads = copy_grads(model);
    const StepResult expected = plain.step({part}, {}, y, {.microbatches = 4});
    EXPECT_EQ(difference("grads", copy_grads(model), grads), "") << step;
    EXPECT_EQ(difference("losses", expected.losses, got.losses), "") << step;
    EXPECT_EQ(difference("output", expected.output, got.output), "") << step;
  }
  EXPECT_EQ(pipeline.launches().replayed, 4);
}

TEST_F(Launch, SkipConnectionsAndTransmittedWeightsAreReplayed) {
  const models::WholeModel whole = models::example_code(6, 4);
  Pipeline pipeline =
      make_pipeline(whole.stages, {.ranks = 4, .seed = kSeed, .graphs = GraphMode::kOn});
  for (uint64_t step = 0; step < 5; ++step) {
    const Microbatches batch = random_batch(4, 11, 6, step);
    EXPECT_EQ(check_step(pipeline, whole.stages, batch, {kSeed, step}), "") << step;
  }
  EXPECT_EQ(pipeline.launches().replayed, 3);
}

TEST_F(Launch, TiedWeightsOnSeveralRanksAreReplayed) {
  for (const int32_t ranks : {2, 4}) {
    TestModel model = chain_model(4);
    const std::string name = model.bodies[0].parameters.front().first;
    model.ties = {{{StageId(1), name}, {StageId(2), name}}};
    Pipeline pipeline = make_pipeline(model, {.schedule = ranks == 4 ? "1F1B" : "Interleaved1F1B",
                                              .ranks = ranks,
                                              .seed = kSeed,
                                              .graphs = GraphMode::kOn});
    for (uint64_t step = 0; step < 5; ++step) {
      const Microbatches batch = random_batch(4, 11, 5, step);
      EXPECT_EQ(check_step(pipeline, model, batch, {kSeed, step}), "") << step;
    }
    EXPECT_EQ(pipeline.launches().replayed, 3);
  }
}

TEST_F(Launch, WorkThatCannotBeCapturedIsRunAndNamedOnce) {
  TestModel model = chain_model(2);
  model.bodies[1].forward = [inner = model.bodies[1].forward](const Args& args,
                                                              const Kwargs& kwargs) -> c10::IValue {
    const at::Tensor y = inner(args, kwargs).toTensor();
    return y.detach().abs().max().item<float>() > 0 ? y * 2 : y;
  };
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  Pipeline pipeline = make_pipeline(model, {.ranks = 2, .seed = kSeed});
  for (uint64_t step = 0; step < 6; ++step) {
    const Microbatches batch = random_batch(4, 11, 5, step);
    EXPECT_EQ(check_step(pipeline, model, batch, {kSeed, step}), "") << step;
  }
  set_log_sink({});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], testing::HasSubstr("cannot be captured as a graph"));
  EXPECT_THAT(lines[0], testing::HasSubstr("1F0"));
  EXPECT_THAT(lines[0], testing::HasSubstr("aten::_local_scalar_dense"));
  EXPECT_EQ(pipeline.launches().replayed, 0);
  EXPECT_EQ(pipeline.launches().run, 6);

  Pipeline strict = make_pipeline(model, {.ranks = 2, .graphs = GraphMode::kOn});
  const Microbatches batch = random_batch(4, 11, 5, 0);
  for (int step = 0; step < 2; ++step) {
    strict.step(batch);
    take_grads(model.bodies);  // a step with gradients has a different key
  }
  for (int step = 0; step < 2; ++step) {
    EXPECT_ERROR(strict.step(batch), Error, "cannot be captured as a graph");
  }
}

// What was made in the capture must not be used in the step that is run instead.
TEST_F(Launch, ABackwardThatCannotBeCapturedIsRun) {
  TestModel model = chain_model(2);
  model.bodies[0].forward = [inner = model.bodies[0].forward](const Args& args,
                                                              const Kwargs& kwargs) -> c10::IValue {
    const at::Tensor y = inner(args, kwargs).toTensor();
    if (y.requires_grad()) {
      y.register_hook([](const at::Tensor& grad) {
        return grad.abs().max().item<float>() >= 0 ? grad * 2 : grad;
      });
    }
    return y;
  };
  for (const int32_t ranks : {1, 2}) {
    Pipeline pipeline = make_pipeline(
        model,
        {.schedule = ranks == 1 ? "Interleaved1F1B" : "1F1B", .ranks = ranks, .seed = kSeed});
    set_log_sink([](LogLevel, std::string_view) {});
    for (uint64_t step = 0; step < 5; ++step) {
      EXPECT_EQ(check_step(pipeline, model, random_batch(4, 12, 5, step), {kSeed, step}), "")
          << step;
    }
    set_log_sink({});
    EXPECT_EQ(pipeline.launches().replayed, 0);
    EXPECT_THAT(pipeline.launches().reason, testing::HasSubstr("cannot be captured"));
  }
}

TEST_F(Launch, ScopesWithASeedOfTheirOwnAreRun) {
  TestModel model = chain_model(2);
  model.bodies[0].forward = [inner = model.bodies[0].forward](const Args& args,
                                                              const Kwargs& kwargs) -> c10::IValue {
    const RandomScope random(77);
    return at::dropout(inner(args, kwargs).toTensor(), 0.5, true);
  };
  Pipeline pipeline = make_pipeline(model, PipelineOptions{.ranks = 2});
  const Microbatches batch = random_batch(4, 11, 5, 0);
  set_log_sink([](LogLevel, std::string_view) {});
  for (int step = 0; step < 4; ++step) pipeline.step(batch);
  set_log_sink({});
  EXPECT_EQ(pipeline.launches().replayed, 0);
  EXPECT_THAT(pipeline.launches().reason, testing::HasSubstr("a seed of its own"));
}

TEST_F(Launch, CallbacksAndMeasuredStepsAreRun) {
  const TestModel model = chain_model(2);
  Pipeline pipeline = make_pipeline(model, PipelineOptions{.ranks = 2});
  const Microbatches batch = random_batch(4, 11, 5, 0);
  for (int step = 0; step < 4; ++step) {
    pipeline.step(batch);
    take_grads(model.bodies);
  }
  EXPECT_EQ(pipeline.launches().replayed, 2);
  pipeline.step(batch, {.measure_memory = true});
  take_grads(model.bodies);
  EXPECT_EQ(pipeline.launches().replayed, 2);
  EXPECT_EQ(pipeline.launches().reason, "the step measures memory");
  std::atomic<int64_t> seen = 0;  // ranks call at the same time
  pipeline.callbacks().observe([&](Rank rank, Action, ActionPhase) { seen += rank.value() == 0; });
  pipeline.step(batch);
  take_grads(model.bodies);
  EXPECT_GT(seen, 0);
  EXPECT_EQ(pipeline.launches().replayed, 2);
}

TEST_F(Launch, TheRecordingIsThatOfTheLastStepThatWasExecuted) {
  const TestModel model = chain_model(2);
  Pipeline pipeline = make_pipeline(model, {.ranks = 2, .graphs = GraphMode::kOn});
  for (const int32_t microbatches : {4, 4, 4, 4, 6, 4}) {
    pipeline.step(random_batch(microbatches, 13, 5, 0));
    take_grads(model.bodies);
  }
  EXPECT_EQ(pipeline.launches().replayed, 3);
  EXPECT_EQ(pipeline.recording().schedule.num_microbatches(), 6);
  EXPECT_GT(pipeline.report().makespan, 0);
}

TEST_F(Launch, AFailedStepIsAFailureAndTheNextOneWorks) {
  TestModel model = chain_model(2);
  const auto fails = std::make_shared<bool>(false);
  model.bodies[1].forward = [inner = model.bodies[1].forward, fails](
                                const Args& args, const Kwargs& kwargs) -> c10::IValue {
    if (*fails) throw std::runtime_error("broken");
    return inner(args, kwargs);
  };
  Pipeline pipeline = make_pipeline(model, {.ranks = 2, .seed = kSeed});
  set_log_sink([](LogLevel, std::string_view) {});
  const Microbatches batch = random_batch(4, 11, 5, 0);
  EXPECT_EQ(check_step(pipeline, model, batch, {kSeed, 0}), "");
  *fails = true;
  EXPECT_ERROR(pipeline.step(batch), StageError, "broken");  // the rehearsal
  EXPECT_ERROR(pipeline.step(batch), StageError, "broken");  // the capture, then the run
  *fails = false;
  EXPECT_EQ(check_step(pipeline, model, batch, {kSeed, 1}), "");
  set_log_sink({});
}

// An interrupt is no reason to refuse the step as a graph.
TEST_F(Launch, AnInterruptInACaptureEndsTheStepAndTheNextOneIsCaptured) {
  TestModel model = chain_model(2);
  bool is_interrupted = false;
  model.bodies[1].forward = [inner = model.bodies[1].forward, &is_interrupted](
                                const Args& args, const Kwargs& kwargs) -> c10::IValue {
    if (is_interrupted) throw InterruptedError("interrupted");
    return inner(args, kwargs);
  };
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  Pipeline pipeline = make_pipeline(model, {.ranks = 2, .seed = kSeed});
  const Microbatches batch = random_batch(4, 11, 5, 0);
  for (uint64_t step = 0; step < 2; ++step) {
    EXPECT_EQ(check_step(pipeline, model, batch, {kSeed, step}), "") << step;
  }
  is_interrupted = true;
  EXPECT_ERROR(pipeline.step(batch), InterruptedError, "interrupted");
  is_interrupted = false;
  EXPECT_EQ(check_step(pipeline, model, batch, {kSeed, 2}), "");
  EXPECT_EQ(pipeline.launches().replayed, 1);
  set_log_sink({});
  EXPECT_TRUE(lines.empty()) << lines.front();
}

TEST_F(Launch, RefusesToBeOnWhereItCannotBe) {
  TestModel model = chain_model(2);
  EXPECT_ERROR(make_pipeline(model, {.ranks = 2, .graphs = GraphMode::kOn, .max_graphs = 0}),
               ArgumentError, "max_graphs");
  EXPECT_ERROR(make_pipeline(model, {.ranks = 2, .zero_buffering = true, .graphs = GraphMode::kOn}),
               ArgumentError, "zero_buffering");
}

TEST(LaunchWithoutDevice, IsRefusedIfOnAndRunOtherwise) {
  const TestModel model = chain_model(2);
  EXPECT_ERROR(make_pipeline(model, {.ranks = 2, .graphs = GraphMode::kOn}), ArgumentError,
               "no graphs for the device cpu");
  Pipeline pipeline = make_pipeline(model, PipelineOptions{.ranks = 2});
  for (int step = 0; step < 4; ++step) pipeline.step(random_batch(4, 11, 5, 0));
  EXPECT_EQ(pipeline.launches().replayed, 0);
  EXPECT_EQ(pipeline.launches().run, 4);
}

}  // namespace
}  // namespace stagecraft
