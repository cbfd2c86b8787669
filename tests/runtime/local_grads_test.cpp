// Steps that leave gradients local, until a step reduces them over the replicas.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include <ATen/ops/add.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/error.h"
#include "tests/runtime/faults.h"
#include "tests/runtime/harness.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

constexpr int32_t kParts = 3;  // steps whose gradients are reduced once

Microbatches slice(const Microbatches& all, int32_t part, int32_t microbatches) {
  Microbatches some;
  for (int32_t m = part * microbatches; m < (part + 1) * microbatches; ++m) {
    const auto i = static_cast<std::size_t>(m);
    some.inputs.push_back(all.inputs[i]);
    some.targets.push_back(all.targets[i]);
    some.weights.push_back(all.weights[i]);
  }
  return some;
}

// The batch of a replica: microbatches of kParts steps, with weights of their own.
Microbatches batch_of(const ScheduleCase& shape, int32_t replica) {
  const int32_t count = kParts * shape.microbatches;
  return random_batch(count, 2 * count, 6, static_cast<uint64_t>(10 + replica));
}

// The gradients of a rank's own stages.
std::vector<at::Tensor> grads_of(const TestModel& model, const Placement& placement, Rank own) {
  std::vector<at::Tensor> grads;
  for (const StageParameter& parameter : parameters_of(model.bodies)) {
    if (placement.get_rank(parameter.stage) == own) grads.push_back(parameter.tensor.grad());
  }
  return grads;
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.defined() ? tensor.clone() : at::Tensor());
  }
  return copies;
}

struct ReplicaWorld {
  ScheduleCase shape;
  int32_t replicas = 2;
  std::optional<LowerOptions> lowering = std::nullopt;
  std::function<TestModel()> make_model = nullptr;

  TestModel model() const { return make_model ? make_model() : chain_model(shape.stages(), 6); }
  ScheduleSource source() const {
    return ScheduleSource::named(shape.name, shape.ranks, shape.stages_per_rank, lowering);
  }
};

struct Member {
  Runner& runner;
  Transport& transport;
  const TestModel& model;
  const Placement& placement;
  Rank own;

  std::vector<at::Tensor> grads() const { return grads_of(model, placement, own); }
  void step(const Microbatches& batch, bool reduce_grads) const {
    runner.step(part_of(batch, placement, own),
                {.microbatches = static_cast<int32_t>(batch.inputs.size()),
                 .weights = batch.weights,
                 .reduce_grads = reduce_grads});
  }
};

// Every rank of every replica, on a thread of its own with its own copy of the model.
void run_world(const ReplicaWorld& world, const std::function<void(const Member&)>& body) {
  LocalWorld threads(world.replicas * world.shape.ranks);
  const ScheduleSource source = world.source();
  threads.run([&](Transport& transport) {
    const TestModel model = world.model();
    const Rank own(transport.rank().value() % world.shape.ranks);
    Runner runner(transport, stages_on(model, source.placement(), own),
                  runner_options(model, {.source = source,
                                         .timeout = std::chrono::seconds(20),
                                         .seed = 7,
                                         .replicas = world.replicas}));
    body({runner, transport, model, source.placement(), own});
    transport.barrier(Deadline::after(std::chrono::seconds(20)));
  });
}

// Plain autograd on the uncut model: each replica's batch, then the sum in the order of replicas.
std::vector<at::Tensor> plain_grads(const ReplicaWorld& world) {
  std::vector<at::Tensor> sums;
  const int32_t count = kParts * world.shape.microbatches;
  const auto schedule = world.source().training(count, StageGraph::chain(world.shape.stages()));
  for (int32_t replica = 0; replica < world.replicas; ++replica) {
    const TestModel model = world.model();
    train_uncut(model, batch_of(world.shape, replica), weight_order(*schedule), {});
    const std::vector<at::Tensor> grads = take_grads(model.bodies);
    if (sums.empty()) {
      sums = grads;
      continue;
    }
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = at::add(sums[i], grads[i]);
  }
  return sums;
}

std::vector<at::Tensor> own_part(const std::vector<at::Tensor>& all, const Member& member) {
  std::vector<at::Tensor> own;
  const auto parameters = parameters_of(member.model.bodies);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (member.placement.get_rank(parameters[i].stage) == member.own) own.push_back(all[i]);
  }
  return own;
}

TEST(LocalGrads, AreThoseOfOneLargerStepWhenTheyAreReduced) {
  for (const int32_t replicas : {2, 3}) {
    for (const bool has_waits : {false, true}) {
      ReplicaWorld world{.shape = {"1F1B", 2, 1, 4}, .replicas = replicas};
      if (has_waits) world.lowering = LowerOptions{.reduction_wait = ReductionWait::kDeferred};
      const std::vector<at::Tensor> expected = plain_grads(world);
      run_world(world, [&](const Member& member) {
        const Microbatches all = batch_of(world.shape, member.runner.replica());
        for (int32_t part = 0; part < kParts; ++part) {
          member.step(slice(all, part, 4), part + 1 == kParts);
        }
        const std::vector<at::Tensor> once = copies_of(member.grads());
        EXPECT_EQ(difference("gradients", once, own_part(expected, member)), "");
        take_grads(member.model.bodies);
        member.step(all, true);
        EXPECT_EQ(difference("gradients", once, member.grads()), "");
      });
    }
  }
}

// Until then they are the sums of the replica's own microbatches.
TEST(LocalGrads, AreSummedOnEachReplica) {
  const ReplicaWorld world{.shape = {"ZBVZeroBubble", 2, 2, 4}};
  run_world(world, [&](const Member& member) {
    const Microbatches all = batch_of(world.shape, member.runner.replica());
    const TestModel plain = world.model();
    const auto schedule = world.source().training(4, StageGraph::chain(4));
    for (int32_t part = 0; part < kParts; ++part) {
      member.step(slice(all, part, 4), false);
      train_uncut(plain, slice(all, part, 4), weight_order(*schedule), {});
      const auto grads = grads_of(plain, member.placement, member.own);
      EXPECT_EQ(difference("gradients", member.grads(), grads), "");
    }
  });
}

// Gradients that are reduced count once, whatever is added to them.
TEST(LocalGrads, AddToReducedOnes) {
  const auto tied = [] {
    TestModel model = chain_model(4, 6);
    model.ties = {{{StageId(0), "weight"}, {StageId(3), "weight"}}};
    return model;
  };
  for (const ReplicaWorld& world :
       {ReplicaWorld{.shape = {"1F1B", 2, 1, 4}},
        ReplicaWorld{.shape = {"1F1B", 2, 1, 4}, .replicas = 3},
        ReplicaWorld{.shape = {"1F1B", 4, 1, 4}, .make_model = tied},
        ReplicaWorld{.shape = {"ZBVZeroBubble", 2, 2, 4}, .make_model = tied}}) {
    run_world(world, [&](const Member& member) {
      const Microbatches all = batch_of(world.shape, member.runner.replica());
      const std::vector<bool> reduce = {true, false, false, true, true, false, true};
      for (std::size_t i = 0; i < reduce.size(); ++i) {
        member.step(slice(all, static_cast<int32_t>(i) % kParts, 4), reduce[i]);
      }
      std::vector<at::Tensor> mixed = copies_of(member.grads());
      const auto everyone = member.transport.all_gather(c10::IValue(mixed),
                                                        Deadline::after(std::chrono::seconds(20)));
      const auto twin = static_cast<std::size_t>(member.own.value());
      EXPECT_EQ(difference("replica 0", everyone[twin].toTensorVector(), mixed), "");
      take_grads(member.model.bodies);
      for (std::size_t i = 0; i < reduce.size(); ++i) {
        member.step(slice(all, static_cast<int32_t>(i) % kParts, 4), true);
      }
      EXPECT_EQ(difference("gradients", mixed, member.grads(), 1e-5), "");
    });
  }
}

TEST(LocalGrads, ClearedOnesAreGone) {
  const ReplicaWorld world{.shape = {"1F1B", 2, 1, 4}};
  run_world(world, [&](const Member& member) {
    const Microbatches all = batch_of(world.shape, member.runner.replica());
    member.step(slice(all, 0, 4), true);
    const std::vector<at::Tensor> expected = copies_of(member.grads());
    take_grads(member.model.bodies);
    member.step(slice(all, 1, 4), false);
    take_grads(member.model.bodies);
    member.step(slice(all, 0, 4), true);
    EXPECT_EQ(difference("without gradients", member.grads(), expected), "");
    member.step(slice(all, 1, 4), false);
    for (const at::Tensor& grad : member.grads()) grad.zero_();
    member.step(slice(all, 0, 4), true);
    EXPECT_EQ(difference("with zeros", member.grads(), expected), "");
  });
}

// A weight that is frozen while its gradient is local is reduced all the same.
TEST(LocalGrads, OfAWeightThatIsFrozenLater) {
  const ReplicaWorld world{.shape = {"1F1B", 2, 1, 4}};
  run_world(world, [&](const Member& member) {
    const Microbatches all = batch_of(world.shape, member.runner.replica());
    member.step(slice(all, 0, 4), true);
    const std::vector<at::Tensor> expected = copies_of(member.grads());
    take_grads(member.model.bodies);
    member.step(slice(all, 0, 4), false);
    for (const auto& parameter : parameters_of(member.model.bodies)) {
      if (parameter.name == "weight") parameter.tensor.requires_grad_(false);
    }
    member.step(slice(all, 1, 4), true);
    EXPECT_EQ(difference("weight", member.grads().front(), expected.front()), "");
  });
}

TEST(LocalGrads, SendNothingToOtherReplicas) {
  class Counting : public FaultyTransport {
   public:
    Counting(Transport& inner, std::atomic<int>& sends) : FaultyTransport(inner), sends_(sends) {}
    PendingPtr post_send(Rank to, const TransferId& id, c10::IValue value) override {
      if (id.direction == Direction::kReplica) ++sends_;
      return FaultyTransport::post_send(to, id, std::move(value));
    }

   private:
    std::atomic<int>& sends_;
  };
  const ScheduleCase shape{"1F1B", 2, 1, 4};
  const ScheduleSource source = shape.source();
  LocalWorld world(4);
  world.run([&](Transport& end) {
    std::atomic<int> sends = 0;
    Counting transport(end, sends);
    const TestModel model = chain_model(2, 6);
    const Rank own(end.rank().value() % 2);
    Runner runner(transport, stages_on(model, source.placement(), own),
                  runner_options(model, {.source = source, .seed = 7, .replicas = 2}));
    const Microbatches batch = part_of(random_batch(4, 8, 6, 0), source.placement(), own);
    runner.step(batch, {.microbatches = 4, .reduce_grads = false});
    EXPECT_EQ(sends, 0);
    runner.step(batch, {.microbatches = 4});
    EXPECT_EQ(sends, 1);
  });
}

// REDUCE_GRAD and its wait are seen, but do nothing.
TEST(LocalGrads, CallNoHooks) {
  const ScheduleCase shape{"Interleaved1F1B", 2, 2, 4};
  const auto source = ScheduleSource::named(shape.name, 2, 2,
                                            LowerOptions{.reduction_wait = ReductionWait::kAtOnce});
  TestModel model = chain_model(4, 6);
  std::atomic<int> hooks = 0;
  std::atomic<int> handled = 0;
  std::atomic<int> seen = 0;
  for (int32_t s = 0; s < 4; ++s) {
    model.options.push_back(
        {.on_reduce_grad = [&] { ++hooks; }, .on_wait_reduce_grad = [&] { ++hooks; }});
  }
  const auto check = [&](PipelineBase& pipeline, const std::function<void(bool)>& step) {
    pipeline.callbacks().observe([&](Rank, Action action, ActionPhase phase) {
      const bool is_reduction =
          action.type() == ActionType::kReduceGrad || action.type() == ActionType::kWaitReduceGrad;
      if (is_reduction && phase == ActionPhase::kEnd) ++seen;
    });
    pipeline.callbacks().replace(ActionType::kReduceGrad, [&](ActionContext& context) {
      ++handled;
      context.run_all();
    });
    step(false);
    step(true);
  };
  const Microbatches batch = random_batch(4, 8, 6, 0);
  {
    Pipeline pipeline = make_pipeline(model, {.source = source});
    check(pipeline, [&](bool reduces) {
      pipeline.step(batch, {.reduce_grads = reduces});
      EXPECT_EQ(hooks, reduces ? 8 : 0);
      EXPECT_EQ(handled, reduces ? 4 : 0);
      EXPECT_EQ(seen, reduces ? 16 : 8);
    });
  }
  hooks = handled = seen = 0;
  run_spmd(source, model, {}, [&](Runner& runner, Transport& transport) {
    check(runner, [&](bool reduces) {
      runner.step(part_of(batch, source.placement(), transport.rank()),
                  {.microbatches = 4, .reduce_grads = reduces});
    });
  });
  EXPECT_EQ(hooks, 8);
  EXPECT_EQ(handled, 4);
  EXPECT_EQ(seen, 16);
}

// A step that fails, local or not, leaves the gradients as they were, and the rest goes on.
TEST(LocalGrads, SurviveAFailedStep) {
  const ReplicaWorld world{.shape = {"1F1B", 2, 1, 4}};
  const std::vector<at::Tensor> expected = plain_grads(world);
  run_world(world, [&](const Member& member) {
    const Microbatches all = batch_of(world.shape, member.runner.replica());
    bool must_fail = false;
    member.runner.callbacks().observe([&](Rank rank, Action action, ActionPhase phase) {
      const bool is_last = action.type() == ActionType::kReduceGrad && phase == ActionPhase::kEnd;
      if (must_fail && rank == Rank(2) && is_last) throw std::runtime_error("broken");
    });
    for (int32_t part = 0; part < kParts; ++part) {
      for (const bool reduces : {false, true}) {
        const std::vector<at::Tensor> before = copies_of(member.grads());
        must_fail = true;
        EXPECT_ERROR(member.step(slice(all, kParts - 1 - part, 4), reduces), Error, "broken");
        must_fail = false;
        EXPECT_EQ(difference("gradients", before, member.grads()), "");
      }
      member.step(slice(all, part, 4), part + 1 == kParts);
    }
    EXPECT_EQ(difference("gradients", member.grads(), own_part(expected, member)), "");
  });
}

// There is no memory for the copy of one gradient: all gradients are those before the step.
TEST(LocalGrads, SurviveAStepThatCannotCopyThem) {
  const ReplicaWorld world{.shape = {"1F1B", 2, 1, 4}};
  run_world(world, [&](const Member& member) {
    const Microbatches all = batch_of(world.shape, member.runner.replica());
    member.step(slice(all, 0, 4), true);
    std::vector<at::Tensor> own;
    for (const StageParameter& parameter : parameters_of(member.model.bodies)) {
      if (member.placement.get_rank(parameter.stage) == member.own) own.push_back(parameter.tensor);
    }
    ASSERT_EQ(own.size(), 2U);  // the first and the last in the order of the copies
    for (at::Tensor& parameter : own) {
      const std::vector<at::Tensor> before = copies_of(member.grads());
      const at::Tensor good = parameter.grad();
      // Elements in one place of memory, which a copy would spread over more than there is.
      const at::Tensor bad = at::zeros({1}).expand({int64_t{1} << 50U});
      if (member.transport.rank() == Rank(0)) parameter.mutable_grad() = bad;
      EXPECT_ERROR(member.step(slice(all, 1, 4), false), Error, "");
      if (member.transport.rank() == Rank(0)) {
        EXPECT_TRUE(parameter.grad().is_same(bad));
        parameter.mutable_grad() = good;
      }
      EXPECT_EQ(difference("gradients", before, member.grads()), "");
    }
    member.step(slice(all, 1, 4), false);
    member.step(slice(all, 2, 4), true);
    const std::vector<at::Tensor> found = copies_of(member.grads());
    take_grads(member.model.bodies);
    for (const int32_t part : {0, 1, 2}) member.step(slice(all, part, 4), true);
    EXPECT_EQ(difference("gradients", found, member.grads(), 1e-5), "");
  });
}

// Each contribution to a tied weight counts once: over the stages, steps and replicas.
TEST(LocalGrads, OfTiedCopiesAreSummedOnce) {
  const auto tied = [] {
    TestModel model = chain_model(4, 6);
    model.ties = {{{StageId(0), "weight"}, {StageId(3), "weight"}}};
    return model;
  };
  for (const int32_t replicas : {2, 3}) {
    const ReplicaWorld world{.shape = {"1F1B", 4, 1, 4}, .replicas = replicas, .make_model = tied};
    std::vector<at::Tensor> expected = plain_grads(world);  // of copies that are not tied
    const auto parameters = parameters_of(tied().bodies);
    at::Tensor sum;
    std::vector<std::size_t> copies;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const StageId stage = parameters[i].stage;
      if (parameters[i].name != "weight" || (stage != StageId(0) && stage != StageId(3))) continue;
      sum = sum.defined() ? at::add(sum, expected[i]) : expected[i];
      copies.push_back(i);
    }
    ASSERT_EQ(copies.size(), 2U);
    for (const std::size_t copy : copies) expected[copy] = sum;
    run_world(world, [&](const Member& member) {
      const Microbatches all = batch_of(world.shape, member.runner.replica());
      for (int32_t part = 0; part < kParts; ++part) {
        member.step(slice(all, part, 4), part + 1 == kParts);
      }
      EXPECT_EQ(difference("gradients", member.grads(), own_part(expected, member), 1e-5), "");
    });
  }
}

// The copy that holds the gradients of earlier steps may be the one that is frozen.
TEST(LocalGrads, OfTiedCopiesOfWhichOneIsFrozen) {
  const auto tied = [] {
    TestModel model = chain_model(4, 6);
    model.ties = {{{StageId(0), "weight"}, {StageId(3), "weight"}}};
    return model;
  };
  for (const int32_t frozen : {0, 3}) {
    SCOPED_TRACE(frozen);
    const ReplicaWorld world{.shape = {"1F1B", 4, 1, 4}, .make_model = tied};
    run_world(world, [&](const Member& member) {
      const Microbatches all = batch_of(world.shape, member.runner.replica());
      const auto freeze = [&](bool is_frozen) {
        for (const StageParameter& parameter : parameters_of(member.model.bodies)) {
          if (parameter.name != "weight" || parameter.stage != StageId(frozen)) continue;
          parameter.tensor.set_requires_grad(!is_frozen);
        }
      };
      const auto train = [&](bool reduces) {
        member.step(slice(all, 0, 4), true);
        freeze(true);
        member.step(slice(all, 1, 4), reduces);
        freeze(false);
        member.step(slice(all, 2, 4), true);
        std::vector<at::Tensor> grads = copies_of(member.grads());
        take_grads(member.model.bodies);
        return grads;
      };
      const std::vector<at::Tensor> expected = train(true);
      EXPECT_EQ(difference("gradients", train(false), expected, 1e-5), "");
    });
  }
}

// Only the runner that left gradients local knows of them.
TEST(LocalGrads, ARunnerThatWasReplacedIsNamed) {
  const ReplicaWorld world{.shape = {"1F1B", 2, 1, 4}};
  run_world(world, [&](const Member& member) {
    const Microbatches all = batch_of(world.shape, member.runner.replica());
    member.step(slice(all, 0, 4), false);
    std::optional<Runner> fresh;
    if (member.transport.rank() == Rank(3)) {
      fresh.emplace(member.transport, stages_on(member.model, member.placement, member.own),
                    runner_options(member.model, {.source = world.source(),
                                                  .timeout = std::chrono::seconds(20),
                                                  .seed = 7,
                                                  .replicas = world.replicas}));
      fresh->set_completed_steps(1);
    }
    Runner& runner = fresh ? *fresh : member.runner;
    runner.recover();
    const Member now{runner, member.transport, member.model, member.placement, member.own};
    const std::vector<at::Tensor> before = copies_of(now.grads());
    for (const bool reduces : {true, false}) {
      EXPECT_ERROR(
          now.step(slice(all, 1, 4), reduces), MetadataError,
          "the ranks do not agree: rank 3 has local gradients of 0 parameters, but rank 1, "
          "which has the same stages, of 2");
    }
    EXPECT_EQ(difference("gradients", before, now.grads()), "");
    // An eval has nothing to do with gradients.
    runner.eval(part_of(slice(all, 1, 4), member.placement, member.own), {.microbatches = 4});
  });
}

TEST(LocalGrads, AllRanksDecideTheSame) {
  const ReplicaWorld world{.shape = {"1F1B", 2, 1, 4}};
  run_world(world, [&](const Member& member) {
    const Microbatches all = batch_of(world.shape, member.runner.replica());
    EXPECT_ERROR(member.step(slice(all, 0, 4), member.transport.rank() != Rank(3)), MetadataError,
                 "StepOptions::reduce_grads");
    member.step(slice(all, 0, 4), true);
  });
}

}  // namespace
}  // namespace stagecraft
