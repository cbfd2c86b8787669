#include "stagecraft/compiled/compiled_pipe.h"

#include <chrono>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/error.h"
#include "stagecraft/runtime/runner.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/transport/local/local_world.h"
#include "tests/compiled/packages.h"
#include "tests/support/expect_error.h"
#include "tests/support/reference.h"

namespace stagecraft {
namespace {

constexpr double kTolerance = 1e-5;

struct Way {
  std::string schedule;
  int32_t ranks = 1;
};

PipelineOptions options_of(const Way& run) {
  return {.schedule = run.schedule, .ranks = run.ranks};
}

/// All schedules that train four stages, with the numbers of ranks that they take.
std::vector<Way> all_runs() {
  std::vector<Way> runs;
  for (const ScheduleKind& kind : schedule_kinds()) {
    for (const int32_t ranks : {1, 2, 4}) {
      try {
        kind.build({.ranks = ranks, .microbatches = 4, .stages_per_rank = 4 / ranks});
      } catch (const ArgumentError&) {
        continue;
      }
      if (kind.name != std::string("ForwardOnly")) runs.push_back({std::string(kind.name), ranks});
    }
  }
  return runs;
}

void expect_close(const Stepped& a, const Stepped& b, const std::string& where) {
  ASSERT_EQ(a.grads.size(), b.grads.size()) << where;
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_LT(relative_difference(a.losses[i], b.losses[i]), kTolerance) << where;
  }
  for (std::size_t i = 0; i < a.grads.size(); ++i) {
    ASSERT_EQ(a.grads[i].defined(), b.grads[i].defined()) << where << ", parameter " << i;
    if (!a.grads[i].defined()) continue;
    EXPECT_LT(relative_difference(a.grads[i], b.grads[i]), kTolerance)
        << where << ", parameter " << i;
  }
}

void expect_same(const Stepped& a, const Stepped& b, const std::string& where) {
  EXPECT_EQ(difference("loss", a.losses, b.losses), "") << where;
  EXPECT_EQ(difference("gradient", a.grads, b.grads), "") << where;
}

bool has_reverse_backwards(const std::string& schedule) {
  return schedule == "LoopedBFS";
}

bool has_halves(const std::string& schedule) {
  return schedule.find("ZeroBubble") != std::string::npos || schedule == "DualPipeV";
}

TEST(CompiledPipe, GradientsAreThoseOfTheGraphsInEverySchedule) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("gpt"));
  ASSERT_EQ(pipe.num_stages(), 4);
  const Stepped expected = gpt_step(graphs_of(pipe), {.schedule = "1F1B", .ranks = 4});
  const std::vector<Way> runs = all_runs();
  EXPECT_GE(runs.size(), 8U);
  for (const Way& run : runs) {
    expect_close(gpt_step(pipe, options_of(run)), expected,
                 run.schedule + " on " + std::to_string(run.ranks));
  }
}

TEST(CompiledPipe, HasTheSameBitsForAnyNumberOfRanksAndScheduleWithWholeBackwards) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("gpt"));
  const Stepped expected = gpt_step(pipe, {.schedule = "1F1B", .ranks = 4});
  int32_t compared = 0;
  for (const Way& run : all_runs()) {
    if (has_halves(run.schedule) || has_reverse_backwards(run.schedule)) continue;
    expect_same(gpt_step(pipe, options_of(run)), expected,
                run.schedule + " on " + std::to_string(run.ranks));
    ++compared;
  }
  EXPECT_GE(compared, 4);
}

TEST(CompiledPipe, HasTheSameBitsInAllSchedulesIfBIsIAndW) {
  const CompiledPipe pipe =
      CompiledPipe::load(package_path("gpt"), {.stages = {.same_bits = true}});
  const Stepped expected = gpt_step(pipe, {.schedule = "1F1B", .ranks = 4});
  int32_t halves = 0;
  for (const Way& run : all_runs()) {
    if (has_reverse_backwards(run.schedule)) continue;
    halves += has_halves(run.schedule) ? 1 : 0;
    expect_same(gpt_step(pipe, options_of(run)), expected,
                run.schedule + " on " + std::to_string(run.ranks));
  }
  EXPECT_GE(halves, 2);
}

// torch's loader of programs is not thread-safe: without a lock, most runs of this test crash.
TEST(CompiledPipe, ThreadsMayBuildStagesAtTheSameTime) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("mlp"));
  LocalWorld world(2);
  world.run([&](Transport& transport) {
    for (int i = 0; i < 200; ++i) {
      transport.barrier(Deadline::after(std::chrono::seconds(60)));
      pipe.build_stage(StageId(0));
    }
  });
}

// Ranks that build their own stages, over a transport.
TEST(CompiledPipe, RunnersHaveTheBitsOfAPipeline) {
  for (const auto& [name, schedule] :
       {std::pair{"gpt", "ZBVZeroBubble"}, std::pair{"drop2", "1F1B"}}) {
    PipelineOptions options{.schedule = schedule, .ranks = 2};
    const CompiledPipe whole = CompiledPipe::load(package_path(name));
    const Stepped expected = gpt_step(whole, options);
    ASSERT_EQ(expected.losses.size(), 4U);
    const CompiledPipe pipe = CompiledPipe::load(package_path(name));
    options.loss = own_loss();
    options.seed = 3;
    options.threads_per_rank = 1;
    Stepped own;
    LocalWorld world(2);
    world.run([&](Transport& transport) {
      Runner runner(transport, pipe, options);
      const Arguments inputs = token_arguments(8);
      const StepResult result = runner.step(inputs.args, inputs.kwargs, {},
                                            {.microbatches = 4, .outputs = OutputMode::kNone});
      // Only the rank of the last stage has losses.
      if (!result.losses.empty()) own.losses = result.losses;
    });
    for (const at::Tensor& parameter : pipe.parameters()) own.grads.push_back(parameter.grad());
    expect_same(own, expected, name);
  }
}

TEST(CompiledPipe, RecomputesWithTheSameBits) {
  for (const char* name : {"gpt", "drop2"}) {
    std::vector<Stepped> steps;
    for (const bool recompute : {false, true}) {
      const CompiledPipe pipe = CompiledPipe::load(package_path(name));
      PipelineOptions options{.schedule = pipe.num_stages() == 4 ? "Interleaved1F1B" : "1F1B",
                              .ranks = 2};
      options.stage_options = [&](StageId) { return StageOptions{.recompute = recompute}; };
      steps.push_back(gpt_step(pipe, options));
    }
    expect_same(steps[0], steps[1], name);
  }
}

TEST(CompiledPipe, TakesMicrobatchesOfDifferentSizes) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("gpt"));
  PipelineOptions options{.schedule = "Interleaved1F1B", .ranks = 2, .loss = own_loss()};
  options.threads_per_rank = 1;
  for (const int64_t rows : {7, 5, 20}) {
    const int32_t microbatches = rows == 20 ? 1 : 2;
    Pipeline compiled(pipe, options);
    const Stepped own = step_of(compiled, pipe, token_arguments(rows), microbatches);
    Pipeline graphs(graphs_of(pipe), options);
    expect_close(own, step_of(graphs, pipe, token_arguments(rows), microbatches),
                 std::to_string(rows) + " rows");
  }
}

TEST(CompiledPipe, RefusesSizesThatItWasNotCompiledFor) {
  const CompiledPipe gpt = CompiledPipe::load(package_path("gpt"));
  Pipeline run(gpt, {.schedule = "Interleaved1F1B", .ranks = 1, .loss = own_loss()});
  const Arguments large = token_arguments(65);
  EXPECT_ERROR(run.step(large.args, {}, {}, {.microbatches = 1}), MetadataError, "65");
  // A stage without a pipeline before it refuses them, too.
  Stage first = gpt.build_stage(StageId(0));
  EXPECT_ERROR(first.forward(MicrobatchId(0), {{large.args[0]}, {}}), MetadataError, "is 65");
  const at::Tensor none = token_arguments(0).args[0].toTensor();
  EXPECT_ERROR(gpt.check_arguments({none, none}, {}), MetadataError,
               "is 0, but the stages were compiled for");
  EXPECT_ERROR(first.forward(MicrobatchId(0), {{none}, {}}), MetadataError,
               "is 0, but the stages were compiled for");
  const CompiledPipe half = CompiledPipe::load(package_path("half"));
  EXPECT_ERROR(half.check_arguments({at::ones({3, 16})}, {}), MetadataError, "args[0]");
}

TEST(CompiledPipe, EvaluatesWithoutGradients) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("gpt"));
  Pipeline run(pipe, {.schedule = "Interleaved1F1B", .ranks = 2, .loss = own_loss()});
  const Arguments inputs = token_arguments(6);
  const StepResult result =
      run.eval(inputs.args, {}, {}, {.microbatches = 1, .outputs = OutputMode::kEach});
  const at::NoGradGuard no_grad;
  const at::Tensor own = result.outputs.front().toTensor();
  EXPECT_LT(relative_difference(own, pipe.run(inputs.args).toTensor()), kTolerance);
  EXPECT_FALSE(own.requires_grad());
  for (const at::Tensor& parameter : pipe.parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST(CompiledPipe, DropoutDoesNotDependOnTheSplit) {
  const CompiledPipe one = CompiledPipe::load(package_path("drop1"));
  const CompiledPipe two = CompiledPipe::load(package_path("drop2"));
  ASSERT_EQ(one.num_stages(), 1);
  ASSERT_EQ(two.num_stages(), 2);
  const auto run = [](const CompiledPipe& pipe, uint64_t seed, int32_t steps) {
    PipelineOptions options{.schedule = "1F1B", .ranks = pipe.num_stages(), .loss = own_loss()};
    options.seed = seed;
    options.threads_per_rank = 1;
    Pipeline pipeline(pipe, options);
    Stepped last;
    for (int32_t i = 0; i < steps; ++i) last = step_of(pipeline, pipe, token_arguments(8), 2);
    return last;
  };
  const Stepped a = run(one, 5, 1);
  const Stepped b = run(two, 5, 1);
  ASSERT_EQ(a.losses.size(), 2U);
  for (std::size_t m = 0; m < 2; ++m) {
    EXPECT_LT(relative_difference(a.losses[m], b.losses[m]), kTolerance);
  }
  // Other seeds, microbatches and steps draw other numbers.
  EXPECT_GT(relative_difference(run(one, 6, 1).losses[0], a.losses[0]), kTolerance);
  EXPECT_GT(relative_difference(run(one, 5, 2).losses[0], a.losses[0]), kTolerance);
  EXPECT_GT(relative_difference(a.losses[1], a.losses[0]), kTolerance);
}

TEST(CompiledPipe, UpdatesBuffersLikeTheGraphs) {
  const CompiledPipe compiled = CompiledPipe::load(package_path("half"));
  const CompiledPipe other = CompiledPipe::load(package_path("half"));
  Stage own = compiled.build_stage(StageId(0));
  Stage graph = graphs_of(other).build_stage(StageId(0));
  const at::Tensor x = at::arange(64, at::kFloat).sin().view({4, 16});
  std::vector<std::vector<c10::IValue>> outputs;
  for (Stage* stage : {&own, &graph}) {
    outputs.push_back(outputs_of(stage->forward(MicrobatchId(0), {{x}, {}})));
  }
  // The package computes in bfloat16.
  constexpr double kHalf = 2e-2;
  ASSERT_EQ(outputs[0].size(), 2U);
  for (std::size_t o = 0; o < 2; ++o) {
    EXPECT_LT(relative_difference(outputs[0][o].toTensor(), outputs[1][o].toTensor()), kHalf);
  }
  ASSERT_EQ(own.buffers().size(), graph.buffers().size());
  ASSERT_GE(own.buffers().size(), 3U);
  for (std::size_t i = 0; i < own.buffers().size(); ++i) {
    EXPECT_LT(relative_difference(own.buffers()[i].second, graph.buffers()[i].second), kHalf)
        << own.buffers()[i].first;
  }
  // Gradients of one output alone.
  own.backward(MicrobatchId(0), {at::ones({4, 16}).to(outputs[0][0].toTensor().scalar_type()), {}});
  for (const auto& [name, parameter] : own.parameters()) {
    EXPECT_TRUE(parameter.grad().defined()) << name;
    EXPECT_EQ(parameter.grad().scalar_type(), parameter.scalar_type()) << name;
  }
}

TEST(CompiledPipe, HoldsAnyNumberOfMicrobatches) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("gpt"));
  Stage stage = pipe.build_stage(StageId(1));
  Stage expected = graphs_of(pipe).build_stage(StageId(1));
  constexpr int32_t kMicrobatches = 6;
  const auto input = [](int32_t m) {
    return at::arange(2 * 8 * 16, at::kFloat).mul(0.01 * (m + 1)).sin().view({2, 8, 16});
  };
  std::vector<at::Tensor> grads[2];
  for (Stage* each : {&stage, &expected}) {
    std::vector<at::Tensor> outputs;
    for (int32_t m = 0; m < kMicrobatches; ++m) {
      // A transposed view of the same values: programs read memory by fixed strides.
      const at::Tensor x = input(m).transpose(0, 1).contiguous().transpose(0, 1);
      outputs.push_back(outputs_of(each->forward(MicrobatchId(m), {{x.requires_grad_()}, {}}))
                            .front()
                            .toTensor());
    }
    for (int32_t m = kMicrobatches; m-- > 0;) {
      const at::Tensor dy =
          outputs[static_cast<std::size_t>(m)].detach().transpose(0, 1).contiguous().transpose(0,
                                                                                               1);
      if (m % 2 == 0) {
        grads[each == &stage ? 0 : 1].push_back(
            each->backward(MicrobatchId(m), {dy}).front().toTensor());
      } else {
        grads[each == &stage ? 0 : 1].push_back(
            each->backward_input(MicrobatchId(m), {dy}).front().toTensor());
      }
    }
    for (int32_t m = 1; m < kMicrobatches; m += 2) each->backward_weight(MicrobatchId(m));
    EXPECT_EQ(each->num_pending(), 0U);
    for (const auto& [name, parameter] : each->parameters()) {
      grads[each == &stage ? 0 : 1].push_back(parameter.grad());
      parameter.mutable_grad().reset();
    }
  }
  for (std::size_t i = 0; i < grads[0].size(); ++i) {
    EXPECT_LT(relative_difference(grads[0][i], grads[1][i]), kTolerance) << i;
  }
}

TEST(CompiledPipe, RefusesWeightsThatChangeBetweenForwardAndBackward) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("gpt"));
  Stage stage = pipe.build_stage(StageId(1));
  const at::Tensor x = at::zeros({2, 8, 16}).requires_grad_();
  const at::Tensor y =
      outputs_of(stage.forward(MicrobatchId(0), {{x}, {}})).front().toTensor().detach();
  {
    const at::NoGradGuard no_grad;
    stage.parameters().front().second.add_(1);
  }
  EXPECT_ERROR(stage.backward(MicrobatchId(0), {y}), Error, "changed in place");
}

TEST(CompiledPipe, PreparesWeightsAgainWhenTheyHaveChanged) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("half"));
  EXPECT_EQ(pipe.package().autocast, "bfloat16");
  ASSERT_NE(pipe.package().stages[0].find(ProgramKind::kPrepare), nullptr);
  Stage stage = pipe.build_stage(StageId(0));
  const at::Tensor x = at::arange(64, at::kFloat).sin().view({4, 16});
  const auto forward = [&] {
    return outputs_of(stage.forward(MicrobatchId(0), {{x}, {}}, {.is_training = false}))
        .front()
        .toTensor();
  };
  const at::Tensor before = forward();
  EXPECT_TRUE(at::equal(forward(), before));
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : stage.parameters()) parameter.zero_();
  }
  EXPECT_TRUE(at::equal(forward(), at::zeros_like(before)));
  // Without a new version of the tensor, a new step tells.
  for (const auto& [name, parameter] : stage.parameters()) {
    parameter.variable_data().fill_(1);
  }
  stage.begin_step();
  EXPECT_FALSE(at::equal(forward(), at::zeros_like(before)));
}

TEST(CompiledPipe, KnowsWhatAMicrobatchHolds) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("gpt"));
  const std::vector<CompiledMemory> memory = pipe.memory();
  ASSERT_EQ(memory.size(), 4U);
  EXPECT_EQ(memory[1].saved, memory[2].saved);
  EXPECT_GT(memory[1].saved, memory[1].kept);
  EXPECT_GT(memory[1].kept, 0);
  EXPECT_GT(memory[1].parameters, 0);
  // What the runtime measures, at the sizes of the example: three rows.
  Pipeline run(pipe, {.schedule = "Interleaved1F1B", .ranks = 1, .loss = own_loss()});
  for (int i = 0; i < 2; ++i) {
    const Arguments inputs = token_arguments(6);
    run.step(inputs.args, {}, {},
             {.microbatches = 2, .outputs = OutputMode::kNone, .measure_memory = true});
  }
  const RecordedRun recorded = run.recorded_run();
  const int64_t output = 3 * 8 * 16 * 4;
  const int64_t held = recorded.memory[1].of(ActionType::kForward).change;
  EXPECT_LE(std::abs(held - memory[1].saved), 2 * output);
}

TEST(CompiledPipe, StagesHaveTheNamesOfTheModel) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("gpt"));
  const Stage stage = pipe.build_stage(StageId(1));
  const Stage expected = graphs_of(pipe).build_stage(StageId(1));
  ASSERT_EQ(stage.parameters().size(), expected.parameters().size());
  for (std::size_t i = 0; i < stage.parameters().size(); ++i) {
    EXPECT_EQ(stage.parameters()[i].first, expected.parameters()[i].first);
    EXPECT_TRUE(stage.parameters()[i].second.is_same(expected.parameters()[i].second));
  }
}

}  // namespace
}  // namespace stagecraft
