// Callbacks of a step cannot begin a step of the same pipeline: they get an error, not a deadlock.

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "stagecraft/base/error.h"
#include "tests/runtime/harness.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

/// Where a program may call a pipeline again.
enum class From { kObserver, kHandler, kAroundForward, kLoss };
constexpr From kEverywhere[] = {From::kObserver, From::kHandler, From::kAroundForward, From::kLoss};

// A model whose `call` is called in each step from that place, and the rest by `hook_up`.
TestModel calling_model(From from, const std::function<void()>& call) {
  TestModel model = chain_model(2);
  if (from == From::kAroundForward) {
    model.options.resize(2);
    for (StageOptions& options : model.options) {
      options.around_forward = [call](const ForwardInfo&, const std::function<void()>& forward) {
        call();
        forward();
      };
    }
  } else if (from == From::kLoss) {
    model.loss = [call, loss = model.loss](const c10::IValue& output, const c10::IValue& target,
                                           const Kwargs& kwargs) {
      call();
      return loss(output, target, kwargs);
    };
  }
  return model;
}

void hook_up(Callbacks& callbacks, From from, const std::function<void()>& call) {
  if (from == From::kObserver) {
    callbacks.observe([call](Rank, Action, ActionPhase) { call(); });
  } else if (from == From::kHandler) {
    callbacks.replace(ActionType::kForward, [call](ActionContext& context) {
      call();
      context.run_all();
    });
  }
}

TEST(NestedStep, IsRefusedByAPipeline) {
  const Microbatches batch = random_batch(4, 8, 5, 1);
  for (const From from : kEverywhere) {
    for (const int32_t ranks : {1, 2}) {  // one rank has no thread of its own
      SCOPED_TRACE(testing::Message() << static_cast<int>(from) << ", ranks " << ranks);
      Pipeline* self = nullptr;
      std::atomic<bool> is_caught = true;
      std::atomic<int> refused = 0;
      const auto call = [&] {
        if (self == nullptr) return;
        if (!is_caught) self->step(batch);
        EXPECT_ERROR(self->step(batch), ArgumentError,
                     "a step of this pipeline is in progress: its callbacks cannot call step or "
                     "eval");
        EXPECT_ERROR(self->eval(batch), ArgumentError, "a step of this pipeline is in progress");
        EXPECT_ERROR(self->recorded_run(), ArgumentError,
                     "a step of this pipeline is in progress: its callbacks cannot read");
        self->recover();  // nothing to do, also in a step
        EXPECT_ERROR(self->set_unshard_lookahead({1}), ArgumentError, "are not gathered");
        ++refused;
      };
      const TestModel model = calling_model(from, call);
      Pipeline pipeline =
          make_pipeline(model, {.source = ScheduleSource::named(ranks == 1 ? "LoopedBFS" : "1F1B",
                                                                ranks, ranks == 1 ? 2 : 1)});
      hook_up(pipeline.callbacks(), from, call);
      self = &pipeline;
      // The program goes on after the error, and so does the step; an eval likewise.
      pipeline.step(batch);
      EXPECT_GT(refused.exchange(0), 0);
      pipeline.eval(batch);
      EXPECT_GT(refused.exchange(0), 0);
      // The program does not catch it: the step fails, and the next one works.
      is_caught = false;
      EXPECT_ERROR(pipeline.step(batch), StageError, "a step of this pipeline is in progress");
      self = nullptr;
      EXPECT_EQ(check_step(pipeline, model, batch), "");
      pipeline.recorded_run();
    }
  }
}

TEST(NestedStep, IsRefusedByARunner) {
  const Microbatches batch = random_batch(4, 8, 5, 1);
  const ScheduleSource source = ScheduleSource::named("1F1B", 2);
  for (const From from : kEverywhere) {
    SCOPED_TRACE(static_cast<int>(from));
    static thread_local std::function<void()> nested;  // every rank has a runner of its own
    const auto call = [] {
      if (nested) nested();
    };
    std::atomic<int> refused = 0;
    run_spmd(source, calling_model(from, call), {}, [&](Runner& runner, Transport& transport) {
      const Microbatches part = part_of(batch, source.placement(), transport.rank());
      hook_up(runner.callbacks(), from, call);
      nested = [&] {
        for (const std::function<void()>& again : std::vector<std::function<void()>>{
                 [&] { runner.step(part, {.microbatches = 4}); },
                 [&] { runner.eval(part, {.microbatches = 4}); }, [&] { runner.recover(); },
                 [&] { runner.recorded_run(); }}) {
          EXPECT_ERROR(again(), ArgumentError, "a step of this runner is in progress");
        }
        ++refused;
      };
      runner.step(part, {.microbatches = 4});
      nested = nullptr;
      runner.step(part, {.microbatches = 4});
    });
    EXPECT_GT(refused, 0);
  }
}

}  // namespace
}  // namespace stagecraft
