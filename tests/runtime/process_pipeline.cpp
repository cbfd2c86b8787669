#include "tests/runtime/process_pipeline.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "stagecraft/runtime/runner.h"
#include "tests/runtime/transparency_cases.h"
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
  const PipelineOptions options = {
      .source = source, .timeout = std::chrono::seconds(20), .seed = 7};
  Runner runner(transport, stages_on(here, source.placement(), rank),
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

// One step of this rank: losses and gradients.
Outcome step_once(Runner& runner, const MatrixCase& c, const TestModel& model, Rank rank,
                  const Placement& placement) {
  const StepOptions options{.microbatches = c.microbatches};
  StepResult result;
  if (c.shape.is_uneven) {
    const bool is_first = placement.get_rank(StageId(0)) == rank;
    const bool is_last = placement.get_rank(StageId(placement.num_stages() - 1)) == rank;
    const c10::IValue target = is_last ? c10::IValue(target_of(0, kUnevenRows)) : c10::IValue();
    result = runner.step(is_first ? Args{input_of(0, kUnevenRows)} : Args{}, {}, target, options);
  } else {
    result = runner.step(part_of(matrix_batch(c.microbatches), placement, rank), options);
  }
  Outcome outcome{.losses = std::move(result.losses), .grads = {}};
  for (const auto& parameter : parameters_of(model.bodies)) {
    if (placement.get_rank(parameter.stage) == rank) {
      outcome.grads.push_back(parameter.tensor.grad());
    }
  }
  return outcome;
}

std::string compare(Transport& transport, const MatrixCase& c) {
  const Rank rank = transport.rank();
  const ScheduleSource source = c.schedule.source(c.ranks, c.stages_per_rank);
  const Placement& placement = source.placement();
  const PipelineOptions options = {
      .source = source, .timeout = std::chrono::seconds(20), .seed = 7};
  const TestModel here = c.shape.make(placement.num_stages());
  Runner runner(transport, stages_on(here, placement, rank), runner_options(here, options));
  const Outcome over_processes = step_once(runner, c, here, rank, placement);
  const TestModel there = c.shape.make(placement.num_stages());
  Outcome over_threads;
  run_spmd(source, there, options, [&](Runner& other, Transport& local) {
    Outcome outcome = step_once(other, c, there, local.rank(), placement);
    if (local.rank() == rank) over_threads = std::move(outcome);
  });
  if (over_processes.grads.empty()) return "there are no gradients";
  const std::string losses = difference("losses", over_processes.losses, over_threads.losses);
  return losses.empty() ? difference("gradients", over_processes.grads, over_threads.grads)
                        : losses;
}

}  // namespace

void expect_matrix_bits(Transport& transport) {
  constexpr std::size_t kDefaultCases = 40;
  const char* const asked = std::getenv("SC_MATRIX");
  const std::size_t wanted = asked == nullptr ? kDefaultCases : std::strtoull(asked, nullptr, 10);
  const char* const given = std::getenv("SC_MATRIX_SEED");
  const auto own = given == nullptr ? std::chrono::system_clock::now().time_since_epoch().count()
                                    : std::strtoll(given, nullptr, 10);
  const Deadline soon = Deadline::after(std::chrono::seconds(20));
  const int64_t seed = transport.broadcast(int64_t{own}, Rank(0), soon).toInt();
  std::vector<MatrixCase> cases = matrix_cases(transport.num_ranks());
  const std::size_t all = cases.size();
  // Not std::shuffle, which may differ from library to library: all ranks draw the same.
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  for (std::size_t i = all; i > 1; --i) std::swap(cases[i - 1], cases[random() % i]);
  cases.resize(std::min(all, wanted));
  if (transport.rank() == Rank(0)) {
    std::cout << cases.size() << " of " << all << " combinations on " << transport.num_ranks()
              << " ranks, SC_MATRIX_SEED=" << seed << std::endl;
  }
  for (const MatrixCase& c : cases) {
    EXPECT_EQ(compare(transport, c), "") << to_string(c) << ", rank " << transport.rank().value();
  }
  transport.barrier(Deadline::after(std::chrono::seconds(20)));
}

Microbatches process_batch(const ScheduleCase& shape, int32_t step) {
  // Values inside a frame, values after a frame, and values that a thread of their own sends.
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

void expect_all_schedules_bits(Transport& transport) {
  for (const auto& shape : training_cases(transport.num_ranks())) {
    SCOPED_TRACE(to_string(shape));
    expect_bits_of_threads(transport, shape, [&] { return chain_model(shape.stages(), 6); });
  }
}

std::vector<ScheduleCase> skip_cases() {
  return {ScheduleCase{"1F1B", 4, 1, 6}, ScheduleCase{"ZBVZeroBubble", 2, 2, 4}};
}

TestModel skip_model(const ScheduleCase& shape) {
  return models::example_code(6, shape.stages()).stages;
}

}  // namespace stagecraft
