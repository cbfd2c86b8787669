// Pipelines over processes: the same bits as over threads, and errors that name who is gone.

#include <chrono>
#include <cstdint>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>

#include "stagecraft/base/error.h"
#include "stagecraft/runtime/runner.h"
#include "tests/runtime/harness.h"
#include "tests/support/gloo_ranks.h"
#include "tests/support/models.h"

namespace stagecraft {
namespace {

constexpr int32_t kSteps = 3;

struct Outcome {
  std::vector<at::Tensor> losses;
  std::vector<at::Tensor> grads;  ///< of this rank's stages
};

// Steps of different sizes: shapes change between processes from step to step.
Microbatches batch_of(const ScheduleCase& shape, int32_t step) {
  return random_batch(shape.microbatches, (3 + step) * shape.microbatches, 6,
                      static_cast<uint64_t>(step));
}

Outcome train(Runner& runner, const ScheduleCase& shape, const TestModel& model, Rank rank) {
  const auto source = shape.source();
  Outcome outcome;
  for (int32_t step = 0; step < kSteps; ++step) {
    const auto result = runner.step(part_of(batch_of(shape, step), source.placement(), rank),
                                    {.microbatches = shape.microbatches, .everywhere = step == 1});
    for (const auto& loss : result.losses) outcome.losses.push_back(loss);
  }
  const auto parameters = parameters_of(model.bodies);
  for (const auto& parameter : parameters) {
    const bool is_own = source.placement().get_rank(parameter.stage) == rank;
    if (is_own) outcome.grads.push_back(parameter.tensor.grad());
  }
  return outcome;
}

// What a rank gets over processes, and then over threads, in one process.
void compare(Transport& transport, const ScheduleCase& shape, const TestModel& here,
             const TestModel& there) {
  const Rank rank = transport.rank();
  const auto source = shape.source();
  const RunnerOptions options = {.timeout = std::chrono::seconds(20), .seed = 7};
  Runner runner(transport, source, stages_on(here, source.placement(), rank),
                runner_options(here, options));
  const auto over_processes = train(runner, shape, here, rank);
  Outcome over_threads;
  run_spmd(source, there, options, [&](Runner& other, Transport& local) {
    auto outcome = train(other, shape, there, local.rank());
    if (local.rank() == rank) over_threads = std::move(outcome);
  });
  EXPECT_FALSE(over_processes.grads.empty());
  EXPECT_EQ(difference("losses", over_processes.losses, over_threads.losses), "");
  EXPECT_EQ(difference("gradients", over_processes.grads, over_threads.grads), "");
}

void expect_same_bits(const ScheduleCase& shape, const std::function<TestModel()>& make) {
  SCOPED_TRACE(to_string(shape));
  const auto ends = run_gloo_ranks(shape.ranks, {}, [&](Transport& transport) {
    compare(transport, shape, make(), make());
    transport.barrier(Deadline::after(std::chrono::seconds(20)));
  });
  for (const auto& end : ends) EXPECT_EQ(end.kind, ProcessEnd::Kind::kReturned) << end.message;
}

TEST(GlooPipeline, EverySchedulesBitsAreThoseOfThreads) {
  for (const int32_t ranks : {2, 3}) {
    for (const auto& shape : training_cases(ranks)) {
      expect_same_bits(shape, [&] { return chain_model(shape.stages(), 6); });
    }
  }
}

TEST(GlooPipeline, SkipConnectionsAndSentWeightsToo) {
  for (const ScheduleCase& shape :
       {ScheduleCase{"1F1B", 4, 1, 6}, ScheduleCase{"ZBVZeroBubble", 2, 2, 4}}) {
    expect_same_bits(shape, [&] { return models::example_code(6, shape.stages()).stages; });
  }
}

TEST(GlooPipeline, AStepNamesTheRankWhoseProcessEnded) {
  const ScheduleCase shape{"1F1B", 3, 1, 6};
  const auto source = shape.source();
  const GlooRanks world(shape.ranks);
  Processes processes(shape.ranks, [&](int32_t i) {
    ProcessWorld joined(world.options(i));
    const auto model = chain_model(shape.stages(), 6);
    Runner runner(joined.transport(), source, stages_on(model, source.placement(), Rank(i)),
                  runner_options(model, {.timeout = std::chrono::seconds(20), .seed = 7}));
    const auto step = [&] {
      runner.step(part_of(batch_of(shape, 0), source.placement(), Rank(i)),
                  {.microbatches = shape.microbatches});
    };
    step();
    if (i == 1) _exit(9);
    step();
  });
  const auto ends = processes.wait();
  for (const std::size_t i : {0, 2}) {
    EXPECT_EQ(ends[i].type, "PeerError") << ends[i].message;
    EXPECT_THAT(ends[i].message, testing::HasSubstr("rank 1: its process has ended"));
    EXPECT_LT(ends[i].seconds, 60);
  }
}

}  // namespace
}  // namespace stagecraft
