// The time that a pipeline takes beyond its compute: one rank against the bare loop, two ranks
// against the replay of their own compute with free transfers, and against PyTorch's pipelines on
// two processes. One thread inside operators everywhere; two ranks, ours and PyTorch's, are pinned
// to a processor each.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sched.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor_split.h>

#include "benchmarks/harness.h"
#include "benchmarks/mlp.h"
#include "benchmarks/python_reference.h"
#include "stagecraft/base/error.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/sim/simulate.h"
#include "stagecraft/stage/callable.h"

namespace {

using namespace stagecraft;
using bench::Mlp;

constexpr int64_t kBatch = 64;  // rows, of all microbatches together
constexpr int32_t kRanks = 2;
constexpr int64_t kTiny = 16;
constexpr int64_t kReal = 512;

struct Data {
  at::Tensor x;
  at::Tensor target;
  std::vector<at::Tensor> xs;
  std::vector<at::Tensor> targets;
  Microbatches microbatches;

  Data(int32_t count, int64_t hidden)
      : x(at::randn({kBatch, hidden})),
        target(at::randn({kBatch, hidden})),
        xs(at::tensor_split(x, count)),
        targets(at::tensor_split(target, count)) {
    for (const at::Tensor& part : xs) microbatches.inputs.push_back({{part}, {}});
    for (const at::Tensor& part : targets) microbatches.targets.emplace_back(part);
  }
};

std::vector<Mlp> make_model(int32_t stages, int64_t hidden) {
  std::vector<Mlp> model;
  for (int32_t i = 0; i < stages; ++i) model.emplace_back(hidden);
  return model;
}

Pipeline make_pipeline(const std::vector<Mlp>& model, const std::string& schedule, int32_t ranks) {
  const auto count = static_cast<int32_t>(model.size());
  std::vector<Stage> stages;
  for (int32_t i = 0; i < count; ++i) {
    const Mlp& mlp = model[static_cast<std::size_t>(i)];
    stages.emplace_back(StageId(i), count, stage_body(mlp, mlp.parameters()));
  }
  return Pipeline(
      std::move(stages),
      {.schedule = schedule,
       .ranks = ranks,
       .loss = [](const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); },
       .threads_per_rank = 1});
}

int count_compute(const Schedule& schedule) {
  const auto list = schedule.actions(Rank(0));
  return static_cast<int>(std::count_if(
      list.begin(), list.end(), [](const Action& action) { return is_compute(action.type()); }));
}

// One rank ------------------------------------------------------------------------------------

// The same modules on the same microbatches in the order of the schedule, as in a program without a
// pipeline: one backward for each microbatch, through all stages.
class BareLoop {
 public:
  /// With `weighs_gradient`, the weight of a microbatch is the initial gradient of its backward,
  /// instead of a factor of its loss.
  BareLoop(const std::vector<Mlp>& model, const Schedule& schedule, const Data& data,
           bool weighs_gradient)
      : model_(model),
        list_(schedule.actions(Rank(0)).begin(), schedule.actions(Rank(0)).end()),
        data_(data),
        weight_(1.0 / static_cast<double>(data.xs.size())),
        values_(data.xs.size()) {
    if (weighs_gradient) gradient_ = at::full({}, weight_);
  }

  void operator()() {
    for (const Action action : list_) {
      if (!has_microbatch(action.type())) continue;
      const auto m = static_cast<std::size_t>(action.microbatch().value());
      const auto s = static_cast<std::size_t>(action.stage().value());
      const bool is_last = s + 1 == model_.size();
      at::Tensor& value = values_[m];
      if (action.type() == ActionType::kForward) {
        value = model_[s](s == 0 ? data_.xs[m] : value);
        if (is_last) value = at::mse_loss(value, data_.targets[m]);
      } else if (is_last) {
        const at::Tensor loss = std::exchange(value, {});
        if (gradient_.defined()) {
          loss.backward(gradient_);
        } else {
          at::mul(loss, weight_).backward();
        }
      }
    }
  }

 private:
  std::vector<Mlp> model_;
  std::vector<Action> list_;
  const Data& data_;
  double weight_;
  at::Tensor gradient_;
  std::vector<at::Tensor> values_;
};

// Checks that both sides computed the same gradients.
void check_same_gradients(const std::vector<Mlp>& a, const std::vector<Mlp>& b) {
  for (std::size_t s = 0; s < a.size(); ++s) {
    for (std::size_t i = 0; i < a[s].parameters().size(); ++i) {
      if (!at::equal(a[s].parameters()[i].second.grad(), b[s].parameters()[i].second.grad())) {
        throw Error(fmt::format("stage {}: the gradients of {} are not those of the bare loop", s,
                                a[s].parameters()[i].first));
      }
    }
  }
}

std::vector<Mlp> copy_of(const std::vector<Mlp>& model, int64_t hidden) {
  std::vector<Mlp> copy = make_model(static_cast<int32_t>(model.size()), hidden);
  for (std::size_t s = 0; s < model.size(); ++s) {
    for (std::size_t i = 0; i < model[s].parameters().size(); ++i) {
      copy[s].parameters()[i].second.set_data(model[s].parameters()[i].second.detach().clone());
    }
  }
  return copy;
}

void compare_one_rank(bench::Suite& suite, int32_t microbatches, int32_t stages, double limit) {
  const std::string name = stages == 1 ? "1F1B" : "Interleaved1F1B";
  const Schedule schedule = build_schedule(name, {1, microbatches, stages});
  const Data data(microbatches, kTiny);
  const std::vector<Mlp> model = make_model(stages, kTiny);
  Pipeline pipeline = make_pipeline(model, name, 1);
  const std::vector<Mlp> bare_model = copy_of(model, kTiny);
  BareLoop bare(bare_model, schedule, data, false);
  BareLoop barest(bare_model, schedule, data, true);
  const StepOptions options{.outputs = OutputMode::kNone};

  pipeline.step(data.microbatches, options);
  bare();
  check_same_gradients(model, bare_model);
  const bench::Timed ours = bench::timed([&] { pipeline.step(data.microbatches, options); });
  const std::string what = fmt::format("one rank, {}, hidden {}, an action over the bare loop",
                                       stages == 1 ? "one stage" : "two stages", kTiny);
  const int actions = count_compute(schedule);
  suite.compare_overhead(what, ours, bench::timed([&] { bare(); }), actions, limit);
  suite.compare_overhead(what + " without its product with the weight", ours,
                         bench::timed([&] { barest(); }), actions);
}

// Two ranks -----------------------------------------------------------------------------------

// The r-th processor that this program may use, for rank r; nothing when there are too few. The
// Python side does the same.
std::optional<int> processor_for(Rank rank) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return std::nullopt;
  if (CPU_COUNT(&allowed) < kRanks) return std::nullopt;
  int left = rank.value();
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed) && left-- == 0) return cpu;
  }
  return std::nullopt;
}

void pin_ranks(Pipeline& pipeline, const Data& data) {
  std::vector<std::optional<int>> processors;
  for (int32_t r = 0; r < kRanks; ++r) processors.push_back(processor_for(Rank(r)));
  pipeline.callbacks().replace(ActionType::kForward, [&](ActionContext& context) {
    if (const auto cpu = processors[static_cast<std::size_t>(context.rank().value())]) {
      cpu_set_t own;
      CPU_ZERO(&own);
      CPU_SET(*cpu, &own);
      sched_setaffinity(0, sizeof own, &own);
    }
    context.run_all();
  });
  pipeline.step(data.microbatches);
  pipeline.callbacks().replace(ActionType::kForward, {});
}

double seconds_of_step(Pipeline& pipeline, const Data& data) {
  const StepOptions options{.outputs = OutputMode::kNone};
  const auto start = std::chrono::steady_clock::now();
  pipeline.step(data.microbatches, options);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The time of a step divided by the time of a replay of its compute with free transfers.
double step_by_replay(Pipeline& pipeline, const Data& data) {
  seconds_of_step(pipeline, data);  // warm, as in a training loop
  const double seconds = seconds_of_step(pipeline, data);
  const Recording recording = pipeline.recording();
  const Simulation replay =
      simulate(recording.schedule, measured_costs(recording), recording.graph);
  return seconds * 1e6 / replay.makespan;
}

void compare_with_replay(bench::Suite& suite, const std::string& what, Pipeline& pipeline,
                         const Data& data, int pairs, double limit) {
  std::vector<double> ratios;
  std::vector<double> again;
  for (int i = 0; i < pairs; ++i) {
    const double first = step_by_replay(pipeline, data);
    const double second = step_by_replay(pipeline, data);
    ratios.insert(ratios.end(), {first, second});
    again.push_back(second / first);
  }
  suite.report({what + ", step by its replay", bench::summarise(ratios).seconds, "x", limit,
                bench::half_quartile_distance(again)});
}

void compare_two_ranks(bench::Suite& suite, const std::string& schedule, int32_t microbatches,
                       bench::PythonReference& python) {
  const int32_t per_rank = get_schedule_kind(schedule).default_stages_per_rank;
  const bool is_plain = per_rank == 1;
  const int actions = count_compute(build_schedule(schedule, {kRanks, microbatches, per_rank}));
  for (const int64_t hidden : {kTiny, suite.quick() ? kTiny * 2 : kReal}) {
    const bool is_tiny = hidden == kTiny;
    const Data data(microbatches, hidden);
    const std::vector<Mlp> model = make_model(kRanks * per_rank, hidden);
    Pipeline pipeline = make_pipeline(model, schedule, kRanks);
    pin_ranks(pipeline, data);
    const std::string what = fmt::format("{}, hidden {}", schedule, hidden);
    compare_with_replay(suite, what, pipeline, data, suite.rounds() * (is_tiny ? 5 : 1),
                        is_tiny ? 1.10 : 1.02);

    const bench::Timed ours = bench::timed(
        [&] { pipeline.step({data.x}, {}, data.target, {.microbatches = microbatches}); });
    const bench::Timed theirs = python.run(fmt::format("{}/{}", schedule, hidden));
    if (is_tiny) {
      suite.compare(what + ", an action", ours, {{"PyTorch", theirs, is_plain ? 0.2 : 0.12}},
                    actions);
    } else {
      suite.compare(what + ", a step", ours, {{"PyTorch", theirs, is_plain ? 0.8 : 0.75}});
    }
  }
}

void measure(bench::Suite& suite) {
  at::set_num_threads(1);
  const int32_t microbatches = suite.quick() ? 4 : 32;
  compare_one_rank(suite, microbatches, 1, 2);
  compare_one_rank(suite, microbatches, 2, 5);

  bench::PythonReference python(
      "vs_pytorch_ranks.py",
      {"vs_pytorch_worker.py", std::to_string(microbatches), std::to_string(kBatch)});
  // The schedules that PyTorch also has.
  for (const char* const name : {"GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B",
                                 "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"}) {
    compare_two_ranks(suite, name, microbatches, python);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_suite("vs_pytorch", argc, argv, measure);
}
