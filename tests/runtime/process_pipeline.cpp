#include "tests/runtime/process_pipeline.h"

#include <array>
#include <chrono>
#include <utility>

#include <gtest/gtest.h>

#include "stagecraft/runtime/runner.h"
#include "tests/support/models.h"

namespace stagecraft {
namespace {

constexpr int32_t kSteps = 3;

struct Outcome {
  std::vector<at::Tensor> losses;
  std::vector<at::Tensor> grads;  ///< of this rank's stages
};

Outcome train(Runner& runner, const ScheduleCase& shape, const TestModel& model, Rank rank) {
  const auto source = shape.source();
  Outcome outcome;
  for (int32_t step = 0; step < kSteps; ++step) {
    const auto result = runner.step(part_of(process_batch(shape, step), source.placement(), rank),
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

}  // namespace

Microbatches process_batch(const ScheduleCase& shape, int32_t step) {
  // Inside a frame, behind one, and so large that it leaves on a thread of its own.
  constexpr std::array<int32_t, kSteps> kRows = {3, 3000, 22'000};
  const int32_t rows = kRows[static_cast<std::size_t>(step % kSteps)];
  return random_batch(shape.microbatches, rows * shape.microbatches, 6,
                      static_cast<uint64_t>(step));
}

void expect_bits_of_threads(Transport& transport, const ScheduleCase& shape,
                            const std::function<TestModel()>& make) {
  compare(transport, shape, make(), make());
  transport.barrier(Deadline::after(std::chrono::seconds(20)));
}

std::vector<ScheduleCase> skip_cases() {
  return {ScheduleCase{"1F1B", 4, 1, 6}, ScheduleCase{"ZBVZeroBubble", 2, 2, 4}};
}

TestModel skip_model(const ScheduleCase& shape) {
  return models::example_code(6, shape.stages()).stages;
}

}  // namespace stagecraft
