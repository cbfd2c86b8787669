#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/slot.h"
#include "tests/runtime/harness.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

// What the documentation of ActionContext says that the built-in handling is.
void forward(ActionContext& context, std::size_t part = 0) {
  context.finish_forward(
      context.stage(part).forward(context.microbatch(part), context.take_inputs(part),
                                  context.forward_options(part)),
      part);
}
void backward(ActionContext& context, std::size_t part = 0) {
  context.finish_backward(
      context.stage(part).backward(context.microbatch(part), context.take_output_grads(part),
                                   context.loss_weight(part)),
      part);
}
void backward_input(ActionContext& context) {
  context.finish_backward(context.stage().backward_input(
      context.microbatch(), context.take_output_grads(), context.loss_weight()));
}
void backward_weight(ActionContext& context) {
  context.stage().backward_weight(context.microbatch());
}

int64_t count_actions(const Schedule& schedule, ActionType type) {
  int64_t count = 0;
  for (const ActionList& list : schedule.lists()) {
    for (const Action action : list) count += action.type() == type ? 1 : 0;
  }
  return count;
}

TEST(Callbacks, ComputeCanBeRebuiltFromItsParts) {
  const std::array<std::pair<ActionType, void (*)(ActionContext&)>, 4> handlers = {{
      {ActionType::kForward, [](ActionContext& c) { forward(c); }},
      {ActionType::kBackward, [](ActionContext& c) { backward(c); }},
      {ActionType::kBackwardInput, backward_input},
      {ActionType::kBackwardWeight, backward_weight},
  }};
  for (const int32_t ranks : {1, 2, 3}) {
    for (const ScheduleCase& shape : training_cases(ranks)) {
      SCOPED_TRACE(to_string(shape));
      const TestModel model = chain_model(shape.stages());
      const Microbatches batch = random_batch(shape.microbatches, 2 * shape.microbatches + 1, 5, 1);
      Pipeline pipeline = make_pipeline(model, shape);
      std::array<std::atomic<int64_t>, 4> calls = {};
      for (std::size_t i = 0; i < handlers.size(); ++i) {
        pipeline.callbacks().replace(handlers[i].first, [&, i](ActionContext& context) {
          EXPECT_EQ(context.parts().size(), 1U);
          EXPECT_EQ(context.action().type(), handlers[i].first);
          EXPECT_EQ(context.stage().index(), context.action().stage());
          ++calls[i];
          handlers[i].second(context);
        });
      }
      EXPECT_EQ(check_step(pipeline, model, batch), "");
      for (std::size_t i = 0; i < handlers.size(); ++i) {
        EXPECT_EQ(calls[i], count_actions(pipeline.recording().schedule, handlers[i].first));
      }
      for (const auto& [type, handler] : handlers) pipeline.callbacks().replace(type, {});
      const int64_t before = calls[0];
      EXPECT_EQ(check_step(pipeline, model, batch), "");
      EXPECT_EQ(calls[0], before) << "an empty handler restores the built-in one";
    }
  }
}

TEST(Callbacks, AHandlerCanLetTheBuiltInOneWork) {
  const ScheduleCase shape{"ZBVZeroBubble", 2, 2, 4};
  const TestModel model = chain_model(shape.stages());
  const Microbatches batch = random_batch(4, 9, 5, 1);
  Pipeline pipeline = make_pipeline(model, shape);
  std::atomic<int> calls = 0;
  for (const ActionType type :
       {ActionType::kForward, ActionType::kBackwardInput, ActionType::kBackwardWeight}) {
    pipeline.callbacks().replace(type, [&](ActionContext& context) {
      ++calls;
      context.run_all();
    });
  }
  EXPECT_EQ(check_step(pipeline, model, batch), "");
  EXPECT_EQ(calls, 3 * 4 * 4 - count_actions(pipeline.recording().schedule, ActionType::kBackward));
}

// A handler changes what the stage computes: here it doubles the loss's weight.
TEST(Callbacks, AHandlerDecidesWhatHappens) {
  const TestModel model = chain_model(2);
  const Microbatches batch = random_batch(4, 8, 5, 1);
  Pipeline pipeline = make_pipeline(model, {.schedule = "1F1B"});
  pipeline.step(batch);
  const std::vector<at::Tensor> plain = take_grads(model.bodies);
  pipeline.callbacks().replace(ActionType::kBackward, [](ActionContext& context) {
    context.finish_backward(context.stage().backward(
        context.microbatch(), context.take_output_grads(), 2 * context.loss_weight()));
  });
  pipeline.step(batch);
  const std::vector<at::Tensor> doubled = take_grads(model.bodies);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(difference("gradient", doubled[i], plain[i].mul(2)), "");
  }
}

TEST(Callbacks, AHandlerCannotAskForWhatItsActionLacks) {
  const TestModel model = chain_model(2);
  const Microbatches batch = random_batch(4, 8, 5, 1);
  const auto expect_error = [&](ActionType type, const ActionHandler& handler,
                                const std::string& text) {
    Pipeline pipeline = make_pipeline(model, {.schedule = "1F1B"});
    pipeline.callbacks().replace(type, handler);
    EXPECT_ERROR(pipeline.step(batch), StageError, text);
  };
  expect_error(
      ActionType::kReduceGrad, [](ActionContext& context) { context.loss_weight(); },
      "REDUCE_GRAD; expected F, I, W or B");
  expect_error(
      ActionType::kReduceGrad, [](ActionContext& context) { context.microbatch(); },
      "a handler calls microbatch for ");
  expect_error(
      ActionType::kBackward, [](ActionContext& context) { context.take_inputs(); },
      "a handler calls take_inputs for ");
  expect_error(
      ActionType::kForward, [](ActionContext& context) { context.take_output_grads(); },
      "; expected B or I");
  expect_error(
      ActionType::kForward, [](ActionContext& context) { context.run(1); },
      "a handler asks for part 1 of ");
}

TEST(Callbacks, AnOverlapCanBeReplaced) {
  for (const int32_t ranks : {2, 3, 4}) {
    const ScheduleCase shape{"DualPipeV", ranks, 2, 2 * ranks + 2};
    SCOPED_TRACE(to_string(shape));
    const TestModel model = chain_model(shape.stages());
    // Uneven, so that the two parts have different weights.
    const Microbatches batch = random_batch(shape.microbatches, 3 * shape.microbatches + 1, 5, 1);
    Pipeline pipeline = make_pipeline(model, shape);
    std::atomic<int64_t> calls = 0;
    std::atomic<int64_t> forwards = 0;
    pipeline.callbacks().replace(ActionType::kForward, [&](ActionContext& context) {
      ++forwards;
      forward(context);
    });
    pipeline.callbacks().replace(ActionType::kOverlap, [&](ActionContext& context) {
      ++calls;
      ASSERT_TRUE(context.action().is_overlap());
      ASSERT_EQ(context.parts().size(), 2U);
      EXPECT_EQ(context.parts()[0].type(), ActionType::kForward);
      EXPECT_EQ(context.parts()[1].type(), ActionType::kBackward);
      EXPECT_EQ(context.stage(1).index(), context.parts()[1].stage());
      forward(context, 0);
      backward(context, 1);
    });
    EXPECT_EQ(check_step(pipeline, model, batch), "");
    const Schedule schedule = pipeline.recording().schedule;
    const int64_t overlaps = count_actions(schedule, ActionType::kOverlap);
    EXPECT_GT(overlaps, 0);
    EXPECT_EQ(calls, overlaps);
    EXPECT_EQ(forwards, shape.stages() * shape.microbatches - overlaps);

    // The parts of the overlap in a different order, by the built-in handling.
    pipeline.callbacks().replace(ActionType::kOverlap, [&](ActionContext& context) {
      context.run(1);
      context.run(0);
    });
    EXPECT_EQ(check_step(pipeline, model, batch), "");

    // Without a handler of its own, its parts have theirs.
    pipeline.callbacks().replace(ActionType::kOverlap, {});
    forwards = 0;
    EXPECT_EQ(check_step(pipeline, model, batch), "");
    EXPECT_EQ(forwards, shape.stages() * shape.microbatches);
  }
}

// Overlaps around their parts, everything else one after the other, as in the rank's list.
TEST(Callbacks, ObserversSeeEveryActionInOrder) {
  for (const int32_t ranks : {1, 2, 3}) {
    for (const ScheduleCase& shape : training_cases(ranks)) {
      SCOPED_TRACE(to_string(shape));
      const TestModel model = chain_model(shape.stages());
      const Microbatches batch = random_batch(shape.microbatches, 2 * shape.microbatches, 5, 1);
      Pipeline pipeline = make_pipeline(model, shape);
      std::vector<std::vector<std::string>> seen(static_cast<std::size_t>(ranks));
      std::atomic<int64_t> seen_by_second = 0;
      pipeline.callbacks().observe([&](Rank rank, Action action, ActionPhase phase) {
        seen[static_cast<std::size_t>(rank.value())].push_back(
            (phase == ActionPhase::kBegin ? "+" : "-") + to_string(action));
      });
      pipeline.callbacks().observe([&](Rank, Action, ActionPhase) { ++seen_by_second; });
      for (const bool is_training : {true, false}) {
        for (auto& each : seen) each.clear();
        seen_by_second = 0;
        if (is_training) {
          pipeline.step(batch);
        } else {
          pipeline.eval(batch);
        }
        const Schedule schedule = pipeline.recording().schedule;
        int64_t total = 0;
        for (Rank rank(0); rank.value() < ranks; ++rank) {
          std::vector<std::string> expected;
          for (const Slot& slot : schedule.slots(rank)) {
            if (slot.is_overlap()) expected.push_back("+OVERLAP_F_B");
            for (const Action part : slot.parts()) {
              expected.push_back("+" + to_string(part));
              expected.push_back("-" + to_string(part));
            }
            if (slot.is_overlap()) expected.push_back("-OVERLAP_F_B");
          }
          EXPECT_EQ(seen[static_cast<std::size_t>(rank.value())], expected);
          total += static_cast<int64_t>(expected.size());
        }
        EXPECT_EQ(seen_by_second, total);
      }
      take_grads(model.bodies);
    }
  }
}

TEST(Callbacks, ObserversSeeReplacedActionsToo) {
  const TestModel model = chain_model(2);
  Pipeline pipeline = make_pipeline(model, {.schedule = "LoopedBFS", .ranks = 1});
  std::vector<std::string> seen;
  pipeline.callbacks().replace(ActionType::kForward, [&](ActionContext& context) {
    seen.push_back("handler");
    context.run_all();
  });
  pipeline.callbacks().observe([&](Rank, Action action, ActionPhase phase) {
    if (action.type() != ActionType::kForward) return;
    seen.push_back((phase == ActionPhase::kBegin ? "+" : "-") + to_string(action));
  });
  pipeline.step(random_batch(1, 2, 5, 1));
  EXPECT_EQ(seen, (std::vector<std::string>{"+0F0", "handler", "-0F0", "+1F0", "handler", "-1F0"}));
}

TEST(Callbacks, ShardingHooksAreCalledInTheOrderOfTheList) {
  const std::map<ActionType, std::string> names = {{ActionType::kUnshard, "UNSHARD"},
                                                   {ActionType::kReshard, "RESHARD"},
                                                   {ActionType::kReduceGrad, "REDUCE_GRAD"}};
  for (const ScheduleCase& shape : training_cases(2)) {
    SCOPED_TRACE(to_string(shape));
    TestModel model = chain_model(shape.stages());
    std::mutex mutex;
    std::vector<std::string> called;
    for (int32_t s = 0; s < shape.stages(); ++s) {
      auto hook = [&, s](const char* name) {
        return [&mutex, &called, text = std::to_string(s) + name] {
          const std::lock_guard lock(mutex);
          called.push_back(text);
        };
      };
      StageOptions& options = model.options.emplace_back();
      options.on_unshard = hook("UNSHARD");
      options.on_reshard = hook("RESHARD");
      options.on_reduce_grad = hook("REDUCE_GRAD");
    }
    // Forwards and backwards take part, so that hooks are seen between the right ones.
    Pipeline pipeline = make_pipeline(model, shape);
    pipeline.callbacks().observe([&](Rank, Action action, ActionPhase phase) {
      if (phase != ActionPhase::kEnd || !is_compute(action.type())) return;
      const std::lock_guard lock(mutex);
      called.push_back(to_string(action));
    });
    pipeline.step(random_batch(shape.microbatches, 2 * shape.microbatches, 5, 1));
    const Schedule schedule = pipeline.recording().schedule;
    for (Rank rank(0); rank.value() < shape.ranks; ++rank) {
      std::vector<std::string> expected;
      for (const Action action : schedule.actions(rank)) {
        if (is_compute(action.type()) || names.contains(action.type())) {
          expected.push_back(to_string(action));
        }
      }
      std::vector<std::string> own;
      for (const std::string& text : called) {
        const StageId stage(std::stoi(text));
        if (schedule.placement().get_rank(stage) == rank) own.push_back(text);
      }
      EXPECT_EQ(own, expected);
    }
    EXPECT_EQ(count_actions(schedule, ActionType::kReduceGrad), shape.stages());
    EXPECT_EQ(count_actions(schedule, ActionType::kUnshard),
              count_actions(schedule, ActionType::kReshard));

    // REDUCE_GRAD belongs to training.
    called.clear();
    pipeline.eval(random_batch(shape.microbatches, 2 * shape.microbatches, 5, 1));
    for (const std::string& text : called) {
      EXPECT_EQ(text.find("REDUCE_GRAD"), std::string::npos);
    }
    take_grads(model.bodies);
  }
}

// The lists of torch 2.15, with its waits, give the same bits, and the waits are executed.
TEST(Callbacks, WaitsAreExecuted) {
  for (const ScheduleCase& shape : training_cases(2)) {
    SCOPED_TRACE(to_string(shape));
    TestModel model = chain_model(shape.stages());
    std::atomic<int> hooks = 0;
    for (int32_t s = 0; s < shape.stages(); ++s) {
      model.options.push_back({.on_wait_reduce_grad = [&] { ++hooks; }});
    }
    const Schedule compute = build_schedule(shape.name, {.ranks = shape.ranks,
                                                         .microbatches = shape.microbatches,
                                                         .stages_per_rank = shape.stages_per_rank});
    const Schedule lowered = lower(compute, {.target = LowerTarget::kTorch215, .max_sends = 2});
    Pipeline pipeline = make_pipeline(model, {.source = ScheduleSource::fixed(lowered)});
    std::mutex mutex;
    std::vector<Action> done;
    pipeline.callbacks().observe([&](Rank, Action action, ActionPhase phase) {
      const std::lock_guard lock(mutex);
      if (phase == ActionPhase::kEnd && is_send_wait(action.type())) done.push_back(action);
    });
    const Microbatches batch = random_batch(shape.microbatches, 2 * shape.microbatches, 5, 1);
    EXPECT_EQ(check_step(pipeline, model, batch), "");
    EXPECT_EQ(hooks, shape.stages());
    EXPECT_EQ(static_cast<int64_t>(done.size()),
              count_actions(lowered, ActionType::kSendForward) +
                  count_actions(lowered, ActionType::kSendBackward));
  }
}

// What a replica-parallel program does: the gradient that a hook sees is complete.
TEST(Callbacks, ReduceGradSeesTheWholeGradient) {
  for (const ScheduleCase& shape : training_cases(2)) {
    SCOPED_TRACE(to_string(shape));
    TestModel model = chain_model(shape.stages());
    std::vector<std::vector<at::Tensor>> seen(static_cast<std::size_t>(shape.stages()));
    model.options.resize(static_cast<std::size_t>(shape.stages()));
    for (std::size_t s = 0; s < seen.size(); ++s) {
      model.options[s].on_reduce_grad = [&seen, s, parameters = model.bodies[s].parameters] {
        for (const auto& [name, parameter] : parameters) {
          seen[s].push_back(parameter.grad().clone());
          parameter.mutable_grad().mul_(0.5);
        }
      };
    }
    const Microbatches batch = random_batch(shape.microbatches, 2 * shape.microbatches, 5, 1);
    Pipeline pipeline = make_pipeline(model, shape);
    pipeline.step(batch);
    const std::vector<at::Tensor> after = take_grads(model.bodies);
    const std::vector<at::Tensor> expected = cut_grads(model, batch, pipeline.recording().schedule);
    std::vector<at::Tensor> all;
    for (const auto& each : seen) all.insert(all.end(), each.begin(), each.end());
    EXPECT_EQ(difference("gradient", all, expected), "");
    for (std::size_t i = 0; i < after.size(); ++i) {
      EXPECT_EQ(difference("gradient", after[i], expected[i].mul(0.5)), "");
    }
  }
}

TEST(Callbacks, ShardingActionsCanBeReplacedForAllStagesAtOnce) {
  const ScheduleCase shape{"Interleaved1F1B", 2, 2, 4};
  TestModel model = chain_model(shape.stages());
  std::atomic<int> hooks = 0;
  for (int32_t s = 0; s < shape.stages(); ++s) {
    model.options.push_back({.on_reduce_grad = [&] { ++hooks; }});
  }
  Pipeline pipeline = make_pipeline(model, shape);
  std::atomic<int> handled = 0;
  pipeline.callbacks().replace(ActionType::kReduceGrad, [&](ActionContext& context) {
    ++handled;
    if (context.stage().index().value() == 3) context.run_all();
  });
  EXPECT_EQ(check_step(pipeline, model, random_batch(4, 8, 5, 1)), "");
  EXPECT_EQ(handled, 4);
  EXPECT_EQ(hooks, 1);
}

TEST(Callbacks, TransfersCannotBeReplaced) {
  Callbacks callbacks;
  for (const ActionType type :
       {ActionType::kSendForward, ActionType::kRecvForward, ActionType::kSendBackward,
        ActionType::kRecvBackward, ActionType::kWaitSendForward, ActionType::kWaitSendBackward}) {
    EXPECT_ERROR(callbacks.replace(type, [](ActionContext&) {}), ArgumentError,
                 std::string(to_string(type)));
    EXPECT_EQ(callbacks.find_handler(type), nullptr);
  }
  EXPECT_THROW(callbacks.replace(ActionType::kIdle, [](ActionContext&) {}), ArgumentError);
  for (const ActionType type :
       {ActionType::kForward, ActionType::kBackwardInput, ActionType::kBackwardWeight,
        ActionType::kBackward, ActionType::kUnshard, ActionType::kReshard, ActionType::kReduceGrad,
        ActionType::kWaitReduceGrad, ActionType::kOverlap}) {
    callbacks.replace(type, [](ActionContext&) {});
    EXPECT_NE(callbacks.find_handler(type), nullptr);
  }
}

// Each rank's runner has its own.
TEST(Callbacks, OfARunner) {
  const TestModel model = chain_model(2);
  const Microbatches batch = random_batch(4, 8, 5, 1);
  const ScheduleSource source = ScheduleSource::named("1F1B", 2);
  std::atomic<int> forwards = 0;
  std::atomic<int> observed = 0;
  run_spmd(source, model, {}, [&](Runner& runner, Transport& transport) {
    if (transport.rank() == Rank(1)) {
      runner.callbacks().replace(ActionType::kForward, [&](ActionContext& context) {
        EXPECT_EQ(context.rank(), Rank(1));
        ++forwards;
        forward(context);
      });
    } else {
      runner.callbacks().observe([&](Rank rank, Action, ActionPhase) {
        EXPECT_EQ(rank, Rank(0));
        ++observed;
      });
    }
    runner.step(part_of(batch, source.placement(), transport.rank()));
  });
  EXPECT_EQ(forwards, 4);
  const auto schedule = source.training(4, StageGraph::chain(2));
  EXPECT_EQ(observed, 2 * static_cast<int>(schedule->actions(Rank(0)).size()));
  const std::vector<at::Tensor> grads = take_grads(model.bodies);
  EXPECT_EQ(difference("gradient", grads, cut_grads(model, batch, *schedule)), "");
}

}  // namespace
}  // namespace stagecraft
