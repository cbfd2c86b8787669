// Several pipelines that train one model, on threads.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/tanh.h>

#include "stagecraft/base/error.h"
#include "stagecraft/stage/callable.h"
#include "tests/runtime/faults.h"
#include "tests/runtime/replica_cases.h"
#include "tests/support/expect_error.h"
#include "tests/support/models.h"

namespace stagecraft {
namespace {

void check_on_threads(const ReplicaCase& c) {
  LocalWorld world(c.replicas * c.schedule.ranks);
  world.run([&](Transport& transport) { check_replicas(transport, c); });
}

std::function<TestModel()> chain(int32_t stages) {
  return [stages] { return chain_model(stages, 6); };
}

TEST(Replicas, HaveTheGradientsOfOnePipeline) {
  for (const ScheduleCase& schedule : training_cases(2)) {
    check_on_threads({.schedule = schedule, .make_model = chain(schedule.stages())});
  }
}

// Waits for reductions, at once or deferred, change no bit.
TEST(Replicas, WaitForTheirReductions) {
  for (const ReductionWait wait : {ReductionWait::kAtOnce, ReductionWait::kDeferred}) {
    for (const int32_t replicas : {2, 3}) {
      check_on_threads({.schedule = {"Interleaved1F1B", 2, 2, 4},
                        .replicas = replicas,
                        .rows = std::vector<int64_t>(static_cast<std::size_t>(replicas), 3),
                        .make_model = chain(4),
                        .lowering = LowerOptions{.reduction_wait = wait, .max_sends = 1}});
    }
  }
  check_on_threads({.schedule = {"ZBVZeroBubble", 2, 2, 4},
                    .make_model = chain(4),
                    .lowering = LowerOptions{.target = LowerTarget::kTorch215}});
}

// Three and more share the work of adding up.
TEST(Replicas, AnyNumberOfThem) {
  const ScheduleCase two{"1F1B", 2, 1, 4};
  check_on_threads({.schedule = two, .replicas = 3, .rows = {3, 3, 3}, .make_model = chain(2)});
  const ScheduleCase one{"Interleaved1F1B", 1, 2, 2};
  check_on_threads(
      {.schedule = one, .replicas = 5, .rows = {2, 2, 2, 2, 2}, .make_model = chain(2)});
}

TEST(Replicas, CountByTheirRows) {
  check_on_threads({.schedule = {"1F1B", 2, 1, 4}, .rows = {5, 2}, .make_model = chain(2)});
}

TEST(Replicas, KeepTiedWeightsTied) {
  const auto make = [] {
    TestModel model = chain_model(4, 6);
    model.ties = {{{StageId(0), "weight"}, {StageId(3), "weight"}}};
    return model;
  };
  check_on_threads({.schedule = {"1F1B", 4, 1, 4}, .make_model = make});
  check_on_threads({.schedule = {"ZBVZeroBubble", 2, 2, 4}, .make_model = make});
}

// A parameter that two stages of a rank hold is complete with the second of them.
TEST(Replicas, ReduceASharedParameterOnce) {
  check_on_threads({.schedule = {"Interleaved1F1B", 1, 2, 2},
                    .make_model = [] { return models::model_with_param_alias(6).stages; }});
}

TEST(Replicas, DrawTheRandomNumbersOfOnePipeline) {
  const auto make = [] {
    TestModel model = chain_model(2, 6);
    for (StageBody& body : model.bodies) {
      body.forward = [inner = body.forward](const Args& args, const Kwargs& kwargs) {
        return c10::IValue(at::dropout(inner(args, kwargs).toTensor(), 0.5, true));
      };
    }
    return model;
  };
  check_on_threads({.schedule = {"1F1B", 2, 1, 4}, .make_model = make});
}

// Stage 1 is done with its backwards before stage 0 on a rank that has both, and sets out then.
TEST(Replicas, SetOutWhileOtherStagesCompute) {
  const ScheduleCase schedule{"Interleaved1F1B", 2, 2, 4};
  const ScheduleSource source = schedule.source();
  std::mutex mutex;
  std::vector<std::string> events;  // of rank 0
  class Watched : public FaultyTransport {
   public:
    Watched(Transport& inner, std::function<void(const TransferId&)> on_send)
        : FaultyTransport(inner), on_send_(std::move(on_send)) {}
    PendingPtr post_send(Rank to, const TransferId& id, c10::IValue value) override {
      on_send_(id);
      return FaultyTransport::post_send(to, id, std::move(value));
    }

   private:
    std::function<void(const TransferId&)> on_send_;
  };
  LocalWorld world(4);
  world.run([&](Transport& end) {
    Watched transport(end, [&](const TransferId& id) {
      const std::lock_guard lock(mutex);
      if (end.rank() == Rank(0) && id.direction == Direction::kReplica) {
        events.push_back("send " + std::to_string(id.from.value()));
      }
    });
    const TestModel model = chain_model(4, 6);
    const Rank own(end.rank().value() % 2);
    Runner runner(transport, stages_on(model, source.placement(), own),
                  runner_options(model, {.source = source, .seed = 7, .replicas = 2}));
    runner.callbacks().observe([&](Rank rank, Action action, ActionPhase phase) {
      const std::lock_guard lock(mutex);
      if (rank == Rank(0) && phase == ActionPhase::kEnd && makes_weight_gradients(action.type())) {
        events.push_back(to_string(action));
      }
    });
    runner.step(part_of(random_batch(4, 8, 6, 0), source.placement(), own), {.microbatches = 4});
  });
  const auto sent = std::find(events.begin(), events.end(), "send 2");
  ASSERT_NE(sent, events.end()) << testing::PrintToString(events);
  EXPECT_THAT(std::vector<std::string>(sent, events.end()), testing::Contains("0B3"));
  EXPECT_EQ(events.back(), "send 0");
}

TEST(Replicas, AFailedStepChangesNoGradient) {
  const ScheduleCase schedule{"1F1B", 2, 1, 4};
  const ScheduleSource source = schedule.source();
  LocalWorld world(4);
  world.run([&](Transport& transport) {
    const TestModel model = chain_model(2, 6);
    const Rank own(transport.rank().value() % 2);
    PipelineOptions options = runner_options(model, {.source = source, .seed = 7, .replicas = 2});
    Runner runner(transport, stages_on(model, source.placement(), own), options);
    const Microbatches batch = part_of(random_batch(4, 8, 6, 0), source.placement(), own);
    runner.step(batch, {.microbatches = 4});
    std::vector<at::Tensor> before;
    for (const auto& each : parameters_of(model.bodies)) {
      if (each.tensor.grad().defined()) before.push_back(each.tensor.grad().clone());
    }
    // In the last action of one rank: the others have sent their gradients, or more.
    const bool is_broken = transport.rank() == Rank(2);
    std::atomic<int> calls = 0;
    runner.callbacks().observe([&](Rank, Action action, ActionPhase phase) {
      const bool is_last = action.type() == ActionType::kReduceGrad && phase == ActionPhase::kEnd;
      if (is_broken && is_last && calls++ == 0) throw std::runtime_error("broken");
    });
    try {
      runner.step(batch, {.microbatches = 4});
      ADD_FAILURE() << "rank " << transport.rank().value() << " has not noticed";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("broken"));
      EXPECT_THAT(error.what(), testing::HasSubstr("rank 2"));
    }
    std::vector<at::Tensor> after;
    for (const auto& each : parameters_of(model.bodies)) {
      if (each.tensor.grad().defined()) after.push_back(each.tensor.grad());
    }
    EXPECT_EQ(difference("gradients", before, after), "");
    runner.step(batch, {.microbatches = 4});
  });
}

// A layer that is frozen first and trained later.
TEST(Replicas, WhatIsTrainedMayChange) {
  const ScheduleCase schedule{"1F1B", 1, 1, 2};
  const ScheduleSource source = schedule.source();
  LocalWorld world(2);
  world.run([&](Transport& transport) {
    const TestModel model = chain_model(1, 6);
    const auto parameters = parameters_of(model.bodies);
    parameters[0].tensor.requires_grad_(false);
    Runner runner(transport, stages_on(model, source.placement(), Rank(0)),
                  runner_options(model, {.source = source, .seed = 7, .replicas = 2}));
    const auto seed = static_cast<uint64_t>(runner.replica());
    runner.step(random_batch(2, 4, 6, seed));
    EXPECT_FALSE(parameters[0].tensor.grad().defined());
    parameters[0].tensor.requires_grad_(true);
    runner.step(random_batch(2, 4, 6, seed));
    const auto all = transport.all_gather(parameters[0].tensor.grad(),
                                          Deadline::after(std::chrono::seconds(20)));
    EXPECT_EQ(difference("gradients", all[0].toTensor(), all[1].toTensor()), "");
    transport.barrier(Deadline::after(std::chrono::seconds(20)));
  });
}

TEST(Replicas, NeedAWorldOfAllOfThem) {
  LocalWorld world(3);
  const TestModel model = chain_model(2, 6);
  const ScheduleSource source = ScheduleSource::named("1F1B", 2);
  const auto make = [&](int32_t replicas) {
    Runner(world.transport(Rank(0)), stages_on(model, source.placement(), Rank(0)),
           runner_options(model, {.source = source, .replicas = replicas}));
  };
  EXPECT_ERROR(make(2), ArgumentError,
               "the schedule is for 2 ranks in each of 2 replicas, but the world has 3");
  EXPECT_ERROR(make(0), ArgumentError, "expected at least one replica, got 0");
}

}  // namespace
}  // namespace stagecraft
