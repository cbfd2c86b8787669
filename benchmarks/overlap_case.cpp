#include "benchmarks/overlap_case.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <malloc.h>
#include <sched.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "benchmarks/harness.h"
#include "stagecraft/base/write_file.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/sim/simulate.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/viz/svg.h"

namespace stagecraft::bench {
namespace {

using Clock = std::chrono::steady_clock;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int32_t kOverlapRanks = 2;
constexpr int32_t kMicrobatches = 24;
constexpr int64_t kRows = 512;
constexpr int64_t kColumns = 4096;  // 8 MB

Deadline overlap_deadline() {
  return Deadline::after(std::chrono::seconds(60));
}

/// The output and the gradient of all stages. They are made once, because making them would take as
/// much processor time as sending them.
const at::Tensor& values() {
  static const at::Tensor all = at::ones({kRows, kColumns});
  return all;
}

/// A stage that works on a device, so that the processor is free.
struct Pass : torch::autograd::Function<Pass> {
  static at::Tensor forward(AutogradContext* /*context*/, const at::Tensor& /*x*/,
                            const at::Tensor& /*w*/) {
    return values().detach();
  }
  static variable_list backward(AutogradContext* /*context*/, const variable_list& /*grads*/) {
    return {values().detach(), at::ones({1})};
  }
};

struct Loss : torch::autograd::Function<Loss> {
  static at::Tensor forward(AutogradContext* /*context*/, const at::Tensor& /*y*/) {
    return at::ones({});
  }
  static variable_list backward(AutogradContext* /*context*/, const variable_list& /*grads*/) {
    return {values().detach()};
  }
};

/// Makes the process keep released memory, as the allocators do that are used for training. A new
/// page of the system takes more processor time than the bytes in it.
void keep_memory() {
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

/// Allows all threads of the process to use any processor, because that of the rank may be busy
/// with copies of sent values.
void free_threads() {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (long cpu = 0; cpu < sysconf(_SC_NPROCESSORS_CONF); ++cpu) {
    CPU_SET(static_cast<std::size_t>(cpu), &all);
  }
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    sched_setaffinity(std::stoi(task.path().filename()), sizeof all, &all);
  }
}

/// The seconds of a transfer of a tensor, if transfers follow one another, as in a step.
double stream(Transport& transport, bool is_forward, uint64_t step) {
  const bool sends = (transport.rank() == Rank(0)) == is_forward;
  const Rank other(1 - transport.rank().value());
  const auto id = [&](int32_t m) {
    return TransferId{step, is_forward ? Direction::kForward : Direction::kBackward, StageId(0),
                      StageId(1), MicrobatchId(m)};
  };
  transport.barrier(overlap_deadline());
  const auto begin = Clock::now();
  std::vector<PendingPtr> pending;
  for (int32_t m = 0; m < kMicrobatches; ++m) {
    pending.push_back(sends ? transport.post_send(other, id(m), values())
                            : transport.post_receive(other, id(m)));
  }
  std::vector<c10::IValue> received;
  for (const PendingPtr& each : pending) {
    if (sends) {
      transport.wait_send(each, overlap_deadline());
    } else {
      received.push_back(transport.wait_receive(each, overlap_deadline()).value);
    }
  }
  transport.barrier(overlap_deadline());
  const std::chrono::duration<double> took = Clock::now() - begin;
  return took.count() / kMicrobatches;
}

double measure_travel(Transport& transport) {
  keep_memory();
  free_threads();
  std::vector<double> times;
  for (uint64_t i = 0; i < 8; ++i) {
    const double there = stream(transport, true, 2 * i);
    const double back = stream(transport, false, 2 * i + 1);
    // The first transfers allocate memory, so they do not count.
    if (i >= 3) times.push_back(std::max(there, back));
  }
  // Both ranks use the result of rank 0.
  return transport.broadcast(summarise(times).seconds, Rank(0), overlap_deadline()).toDouble();
}

}  // namespace

OverlapCase::OverlapCase(Transport& transport)
    : rank_(transport.rank()), travel_(measure_travel(transport)) {
  const at::Tensor w = at::zeros({1}).requires_grad_();
  std::vector<Stage> stages;
  stages.emplace_back(
      StageId(rank_.value()), kOverlapRanks,
      stage_body([w](const at::Tensor& x) { return Pass::apply(x, w); }, {{"w", w}}));
  runner_ = std::make_unique<Runner>(
      transport, std::move(stages),
      PipelineOptions{.schedule = "GPipe",
                      .loss = [](const at::Tensor& y) { return Loss::apply(y); },
                      .seed = 7});
  for (const ActionType type : {ActionType::kForward, ActionType::kBackward}) {
    runner_->callbacks().replace(type, [this](ActionContext& context) { compute(context); });
  }
  if (rank_ == Rank(0)) args_ = {at::ones({kRows * kMicrobatches, kColumns})};
}

double OverlapCase::run() {
  runner_->step(args_, {}, {}, {.microbatches = kMicrobatches, .outputs = OutputMode::kNone});
  const Recording recording = runner_->recorded_run().recording;
  const Simulation replay =
      simulate(recording.schedule, measured_costs(recording), recording.graph);
  const char* const timeline = std::getenv(kTimelineVariable);
  if (timeline != nullptr && rank_ == Rank(0)) {
    const SvgOptions options{.title =
                                 "A transfer as long as a stage's compute; below each lane "
                                 "what compute alone would take",
                             .transfers = true,
                             .plan = &replay};
    write_file(timeline,
               draw_svg(recording.schedule, to_simulation(recording), recording.graph, options));
  }
  return make_report(recording).makespan / replay.makespan;
}

void OverlapCase::compute(ActionContext& context) const {
  const bool is_forward = context.action().type() == ActionType::kForward;
  Arguments inputs;
  std::vector<c10::IValue> grads;
  if (is_forward) {
    inputs = context.take_inputs();
  } else {
    grads = context.take_output_grads();
  }
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(travel_));
  if (is_forward) {
    const c10::IValue output =
        context.stage().forward(context.microbatch(), inputs, context.forward_options());
    std::this_thread::sleep_until(end);
    context.finish_forward(output);
  } else {
    auto given = context.stage().backward(context.microbatch(), grads, context.loss_weight());
    std::this_thread::sleep_until(end);
    context.finish_backward(std::move(given));
  }
}

}  // namespace stagecraft::bench
