// The reduction of gradients over replicas, without a pipeline: the test sets the gradients.

#include "stagecraft/runtime/grad_reducer.h"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/error.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/transport/local/local_world.h"
#include "tests/support/expect_error.h"
#include "tests/transport/run_ranks.h"

namespace stagecraft {
namespace {

constexpr float kNone = -12345;

Stage stage_with(int32_t stage, int32_t stages, const std::vector<at::Tensor>& parameters) {
  NamedTensors named;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    named.emplace_back("w" + std::to_string(i), parameters[i]);
  }
  return {StageId(stage), stages,
          stage_body([](const at::Tensor& x) { return x; }, std::move(named))};
}

// One replica whose stages are on one rank, with a copy of the parameters.
class Replica {
 public:
  // `stages`: the numbers of the parameters that each stage holds.
  Replica(LocalWorld& world, int32_t replica, const std::vector<std::vector<std::size_t>>& stages,
          int64_t size = 1)
      : place_{Rank(replica), 1, world.num_ranks()} {
    for (std::size_t s = 0; s < stages.size(); ++s) {
      std::vector<at::Tensor> own;
      for (const std::size_t number : stages[s]) {
        while (parameters.size() <= number) {
          parameters.push_back(at::zeros({size}).requires_grad_());
        }
        own.push_back(parameters[number]);
      }
      stages_.push_back(
          stage_with(static_cast<int32_t>(s), static_cast<int32_t>(stages.size()), own));
    }
    Transport& transport = world.transport(Rank(replica));
    ties_ = std::make_unique<TiedWeights>(transport,
                                          Placement::loop(1, static_cast<int32_t>(stages.size())),
                                          place_, stages_, std::vector<TiedWeight>());
    reducer_ = std::make_unique<GradReducer>(transport, place_, stages_, *ties_, progress_);
  }

  GradReducer* operator->() { return reducer_.get(); }
  void set(std::size_t parameter, float grad) {
    parameters[parameter].mutable_grad() =
        at::full(parameters[parameter].sizes(), grad, at::kFloat);
  }
  // Adds to the gradient, as a backward does.
  void add(std::size_t parameter, float grad) {
    at::Tensor& known = parameters[parameter].mutable_grad();
    if (known.defined()) {
      known.add_(grad);
    } else {
      set(parameter, grad);
    }
  }
  float grad(std::size_t parameter) const {
    const at::Tensor& grad = parameters[parameter].grad();
    return grad.defined() ? grad[0].item<float>() : kNone;
  }
  // A whole step in which each parameter gets a gradient.
  void step(const std::vector<float>& grads, uint64_t step = 0, bool reduces = true) {
    reducer_->start(reduces);
    for (std::size_t i = 0; i < grads.size(); ++i) add(i, grads[i]);
    reducer_->finish(step, soon());
    reducer_->add_earlier();
  }

  std::vector<at::Tensor> parameters;

 private:
  const ReplicaPlace place_;
  std::vector<Stage> stages_;
  ProgressMark progress_;
  std::unique_ptr<TiedWeights> ties_;
  std::unique_ptr<GradReducer> reducer_;
};

// Two replicas of two stages with a parameter each. One thread is both.
class GradReducerTest : public testing::Test {
 protected:
  void start(bool reduces = true) {
    zero_->start(reduces);
    one_->start(reduces);
  }

  LocalWorld world_{2};
  Replica zero_{world_, 0, {{0}, {1}}};
  Replica one_{world_, 1, {{0}, {1}}};
};

TEST(GradReducer, AllReplicasHaveTheSumInTheOrderOfTheReplicas) {
  // Only (a + b) + c is 1, and only ((a + b) + c) + d is 3.
  const std::vector<float> grads = {1e8F, -1e8F, 1, 2};
  const std::vector<float> sums = {1e8F, 0, 1, 3};
  for (const int32_t replicas : {2, 3, 4}) {
    SCOPED_TRACE(replicas);
    LocalWorld world(replicas);
    std::vector<at::Tensor> memory(static_cast<std::size_t>(replicas));
    run_ranks(replicas, [&](Rank rank) {
      // More parameters than replicas: each replica adds up some of them.
      Replica replica(world, rank.value(), {{0, 1, 2}, {3, 4}});
      const float grad = grads[rank.position()];
      for (uint64_t step = 0; step < 3; ++step) {
        replica->start(true);
        for (std::size_t i = 0; i < 5; ++i) replica.set(i, grad);
        replica->reduce(StageId(1), step);
        replica->reduce(StageId(0), step);
        replica->finish(step, soon());
        for (std::size_t i = 0; i < 5; ++i) {
          EXPECT_EQ(replica.grad(i), sums[static_cast<std::size_t>(replicas - 1)]);
        }
      }
      memory[rank.position()] = replica.parameters[0].grad();
      world.transport(rank).barrier(soon());
    });
    for (std::size_t r = 1; r < memory.size(); ++r) {
      EXPECT_NE(memory[r].data_ptr(), memory[0].data_ptr()) << "replicas share a gradient";
    }
  }
}

TEST(GradReducer, OneReplicaKeepsItsGradients) {
  LocalWorld world(1);
  Replica replica(world, 0, {{0}});
  replica.set(0, 1);
  replica.step({2});
  EXPECT_EQ(replica.grad(0), 3);
}

TEST_F(GradReducerTest, GradientsOfEarlierStepsAreAddedOnce) {
  for (Replica* const replica : {&zero_, &one_}) {
    for (const std::size_t i : {0, 1}) replica->set(i, 100);
  }
  start();
  EXPECT_EQ(zero_.grad(0), kNone) << "a step begins without gradients";
  for (Replica* const replica : {&zero_, &one_}) {
    for (const std::size_t i : {0, 1}) replica->add(i, static_cast<float>(1 + i));
    (*replica)->reduce(StageId(0), 0);
    (*replica)->reduce(StageId(1), 0);
  }
  for (Replica* const replica : {&zero_, &one_}) {
    (*replica)->finish(0, soon());
    EXPECT_EQ(replica->grad(0), 2);
    EXPECT_EQ(replica->grad(1), 4);
    (*replica)->add_earlier();
    EXPECT_EQ(replica->grad(0), 102);
    EXPECT_EQ(replica->grad(1), 104);
    (*replica)->add_earlier();
    EXPECT_EQ(replica->grad(0), 102) << "twice";
  }
}

TEST_F(GradReducerTest, AnAbandonedStepLeavesTheGradientsAsTheyWere) {
  zero_.set(0, 100);
  start();
  zero_.set(0, 1);
  zero_.set(1, 1);
  zero_->reduce(StageId(0), 0);
  zero_->abandon();
  EXPECT_EQ(zero_.grad(0), 100);
  EXPECT_EQ(zero_.grad(1), kNone);
  zero_->add_earlier();
  EXPECT_EQ(zero_.grad(0), 100);
}

TEST_F(GradReducerTest, AddsWhatHasArrivedWithoutWaiting) {
  start();
  zero_.set(1, 1);
  one_.set(1, 2);
  zero_->reduce(StageId(1), 0);
  zero_->poll();
  EXPECT_EQ(zero_.grad(1), 1);
  one_->reduce(StageId(1), 0);
  zero_->poll();
  EXPECT_EQ(zero_.grad(1), 3);
  EXPECT_EQ(one_.grad(1), 2) << "the gradients of a replica belong to it";
  one_->poll();
  EXPECT_EQ(one_.grad(1), 3);
  zero_->poll();
  EXPECT_EQ(zero_.grad(1), 3) << "twice";
}

TEST_F(GradReducerTest, WaitsForOneStage) {
  start();
  for (const std::size_t i : {0, 1}) {
    zero_.set(i, 1);
    one_.set(i, 2);
  }
  zero_->reduce(StageId(0), 0);
  zero_->reduce(StageId(1), 0);
  one_->reduce(StageId(1), 0);
  zero_->wait(StageId(1), soon());
  EXPECT_EQ(zero_.grad(1), 3);
  EXPECT_EQ(zero_.grad(0), 1);
  EXPECT_ERROR(zero_->wait(StageId(0), at_once()), TimeoutError, "rank 1");
}

TEST_F(GradReducerTest, AStageIsReducedOnce) {
  start();
  zero_.set(0, 1);
  one_.set(0, 2);
  for (int i = 0; i < 2; ++i) {
    zero_->reduce(StageId(0), 0);
    one_->reduce(StageId(0), 0);
  }
  zero_->poll();
  EXPECT_EQ(zero_.grad(0), 3);
}

TEST(GradReducer, AParameterOfSeveralStagesIsSentWithTheLastOfThem) {
  LocalWorld world(2);
  Replica zero(world, 0, {{0, 1}, {0}});
  Replica one(world, 1, {{0, 1}, {0}});
  for (Replica* const replica : {&zero, &one}) {
    (*replica)->start(true);
    replica->set(0, 1);
    replica->set(1, 1);
    (*replica)->reduce(StageId(0), 0);
  }
  zero->poll();
  EXPECT_EQ(zero.grad(1), 2);
  EXPECT_EQ(zero.grad(0), 1) << "stage 1 has yet to add to it";
  for (Replica* const replica : {&zero, &one}) {
    replica->add(0, 10);
    (*replica)->reduce(StageId(1), 0);
  }
  zero->finish(0, soon());
  EXPECT_EQ(zero.grad(0), 22);
  EXPECT_EQ(zero.grad(1), 2);
}

TEST_F(GradReducerTest, AReplicaWithoutAGradientAddsNothing) {
  start();
  one_.set(0, 2);
  for (Replica* const replica : {&zero_, &one_}) {
    for (const int32_t s : {0, 1}) (*replica)->reduce(StageId(s), 0);
  }
  for (Replica* const replica : {&zero_, &one_}) {
    (*replica)->finish(0, soon());
    EXPECT_EQ(replica->grad(0), 2);
    EXPECT_EQ(replica->grad(1), kNone);
  }
}

TEST_F(GradReducerTest, FrozenParametersAreNotReduced) {
  zero_.set(0, 100);
  for (Replica* const replica : {&zero_, &one_}) replica->parameters[0].set_requires_grad(false);
  start();
  one_.set(1, 1);
  one_->reduce(StageId(1), 0);
  zero_.set(1, 1);
  // Returns, although replica 1 has not reduced stage 0.
  zero_->finish(0, soon());
  zero_->add_earlier();
  EXPECT_EQ(zero_.grad(0), 100);
  EXPECT_EQ(zero_.grad(1), 2);
}

TEST(GradReducer, RefusesReplicasWithDifferentModels) {
  LocalWorld world(2);
  {
    Replica zero(world, 0, {{0}}, 1);
    Replica one(world, 1, {{0}}, 2);
    for (Replica* const replica : {&zero, &one}) {
      (*replica)->start(true);
      replica->set(0, 1);
      (*replica)->reduce(StageId(0), 0);
    }
    EXPECT_ERROR(zero->finish(0, soon()), MetadataError,
                 "stage 0: replica 1 has a parameter of a different shape");
  }
  Replica zero(world, 0, {{0}});
  Replica one(world, 1, {{0, 1}});
  for (Replica* const replica : {&zero, &one}) {
    (*replica)->start(true);
    replica->set(0, 1);
    (*replica)->reduce(StageId(0), 1);
  }
  EXPECT_ERROR(zero->finish(1, soon()), MetadataError,
               "expected the gradients of 1 parameters of stage 0");
}

// Steps without reduction ------------------------------------------------------------------------

TEST(GradReducer, LocalGradientsAreReducedByTheNextStepThatReduces) {
  for (const int32_t replicas : {2, 3}) {
    SCOPED_TRACE(replicas);
    LocalWorld world(replicas);
    run_ranks(replicas, [&](Rank rank) {
      Replica replica(world, rank.value(), {{0}, {1}});
      const auto r = static_cast<float>(rank.value());
      const auto n = static_cast<float>(replicas);
      const float sum_of_ranks = n * (n - 1) / 2;
      EXPECT_EQ(replica->num_local(), 0);
      replica.step({1 + r, 0}, 0, /*reduces=*/false);
      EXPECT_EQ(replica->num_local(), 2);
      EXPECT_EQ(replica.grad(0), 1 + r);
      replica.step({10, 0}, 1, /*reduces=*/false);
      EXPECT_EQ(replica.grad(0), 11 + r);
      replica.step({100, 0}, 2);
      EXPECT_EQ(replica->num_local(), 0);
      EXPECT_EQ(replica.grad(0), 111 * n + sum_of_ranks);
      // And then it is a gradient of an earlier step.
      replica.step({1, 0}, 3);
      EXPECT_EQ(replica.grad(0), 112 * n + sum_of_ranks);
      world.transport(rank).barrier(soon());
    });
  }
}

TEST_F(GradReducerTest, ReducedGradientsThatBecomeLocalCountOnce) {
  for (Replica* const replica : {&zero_, &one_}) replica->set(0, 100);
  zero_.step({1}, 0, /*reduces=*/false);
  one_.step({2}, 0, /*reduces=*/false);
  EXPECT_EQ(zero_.grad(0), 101);
  EXPECT_EQ(one_.grad(0), 2) << "replica 0 has what was reduced before";
  one_->add_earlier();
  EXPECT_EQ(one_->num_local(), 2) << "the step is over";
  start();
  for (Replica* const replica : {&zero_, &one_}) {
    for (const int32_t s : {0, 1}) (*replica)->reduce(StageId(s), 1);
  }
  for (Replica* const replica : {&zero_, &one_}) {
    (*replica)->finish(1, soon());
    (*replica)->add_earlier();
    EXPECT_EQ(replica->grad(0), 103);
  }
}

TEST_F(GradReducerTest, AnAbandonedLocalStepLeavesTheGradientsAsTheyWere) {
  for (Replica* const replica : {&zero_, &one_}) {
    replica->set(0, 100);
    (*replica)->start(/*reduces=*/false);
    replica->add(0, 1);
    (*replica)->abandon();
    EXPECT_EQ(replica->grad(0), 100);
    EXPECT_EQ((*replica)->num_local(), 0);
  }
}

}  // namespace
}  // namespace stagecraft
