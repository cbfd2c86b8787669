#include "tests/runtime/random_model.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/real.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/error.h"
#include "stagecraft/runtime/wiring.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/passes/split_backward.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/tree/tree.h"
#include "tests/runtime/random_stage.h"
#include "tests/schedule/random.h"

namespace stagecraft {

namespace {

// The mean square of everything that can be differentiated.
at::Tensor loss_of(const c10::IValue& output, const c10::IValue& target, const Kwargs&) {
  const at::Tensor wanted = target.toTensor();
  at::Tensor loss = wanted.mean() * 0;
  for (const c10::IValue& leaf : tree::leaves(output)) {
    if (!leaf.isTensor() || !leaf.toTensor().defined()) continue;
    const at::Tensor& x = leaf.toTensor();
    if (x.is_complex()) loss = loss + (at::real(x).pow(2) + at::imag(x).pow(2)).mean();
    if (x.is_floating_point()) loss = loss + (x - wanted).pow(2).mean();
  }
  return loss;
}

int num_float_leaves(RandomOutput kind) {
  switch (kind) {
    case RandomOutput::kFresh:
    case RandomOutput::kTensor:
    case RandomOutput::kInput:
    case RandomOutput::kView:
    case RandomOutput::kParameter:
    case RandomOutput::kDetached:
    case RandomOutput::kDict:
      return 1;
    case RandomOutput::kTuple:
    case RandomOutput::kList:
      return 2;
    default:
      return 0;
  }
}

// One argument of a stage while the model is being made.
struct Input {
  RandomOutput kind = RandomOutput::kTensor;
  bool has_one_reader = true;
};

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed), seed_(seed) {}

  RandomModel make() {
    const ScheduleChoice choice = choose_schedule();
    const int32_t stages = choice.placement.num_stages();
    dtype_ = random_.one_in(4) ? at::kDouble : at::kFloat;
    hook_calls_ = std::make_shared<std::atomic<int64_t>>(0);
    has_chain_ = !random_.one_in(3);
    model_.ports = has_chain_ ? Ports(stages) : Ports::without_chain(stages);
    note(has_chain_ ? "chain" : "no chain");
    choose_batch();
    positional_.resize(static_cast<std::size_t>(stages));
    named_.resize(static_cast<std::size_t>(stages));
    chained_.resize(static_cast<std::size_t>(stages));
    feed_inputs(stages);
    for (int32_t s = 0; s < stages; ++s) add_stage(s, stages);
    model_.loss = Loss(loss_of);

    const StageGraph graph = stage_graph_of(model_.ports);
    RandomModel result{.model = model_, .source = choice.make(graph), .schedule = choice.title};
    result.microbatches = choice.microbatches;
    result.make_batch = batch_maker(choice.microbatches);
    result.is_regrouped = is_regrouped_;
    result.is_double = dtype_ == at::kDouble;
    result.zero_buffering = random_.one_in(4);
    result.evals_first = random_.one_in(4);
    result.hook_calls = hook_calls_;
    note(choice.title);
    note(is_regrouped_ ? "regrouped" : "not regrouped");
    result.features = features_;
    for (const Ports::Connection& c : model_.ports.connections()) {
      text_ += "output " + to_string(c.from.stage) + "." + std::to_string(c.from.output) +
               " to stage " + to_string(c.to.stage) + "\n";
    }
    result.text = text_;
    return result;
  }

 private:
  struct ScheduleChoice {
    std::string title;
    Placement placement;
    int32_t microbatches;
    std::function<ScheduleSource(const StageGraph&)> make;
  };

  void note(const std::string& feature) { features_.insert(feature); }

  ScheduleChoice choose_schedule() {
    const int32_t microbatches = random_.between(1, 6);
    if (random_.one_in(3)) {
      const Placement placement = make_random_placement(random_.between(1, 7), seed_);
      auto make = [=, seed = seed_](const StageGraph& graph) {
        return ScheduleSource::fixed(make_random_schedule(placement, graph, microbatches, seed));
      };
      return {"random order", placement, microbatches, make};
    }
    for (;;) {
      const ScheduleKind& kind = schedule_kinds()[random_.below(schedule_kinds().size())];
      const int32_t ranks = random_.between(1, 4);
      const Dims dims{ranks, random_.between(1, 3), microbatches};
      if (!kind.has_backward || !kind.takes(dims) || dims.stages() > 8) continue;
      const bool splits = random_.one_in(4);
      const Schedule schedule = splits ? split_backward(kind.make(dims)) : kind.make(dims);
      return {std::string(kind.name) + (splits ? ", split" : ""), schedule.placement(),
              microbatches,
              [schedule](const StageGraph&) { return ScheduleSource::fixed(schedule); }};
    }
  }

  // Inputs of the model -----------------------------------------------------------------------

  void choose_batch() {
    input_requires_grad_ = random_.one_in(3);
    has_integers_ = random_.one_in(2);
    has_uneven_rows_ = random_.one_in(2);
    kwargs_ = random_.between(0, 3);
    if (input_requires_grad_) note("model input with gradient");
    if (has_uneven_rows_) note("rows differ");
  }

  // Args and kwargs go to stage 0 along the chain unless they are fed; without it all are.
  void feed_inputs(int32_t stages) {
    auto any_stage = [&] { return StageId(random_.between(0, stages - 1)); };
    auto feed_arg = [&](int32_t argument, StageId stage, RandomOutput kind) {
      const auto at = static_cast<std::size_t>(stage.value());
      feeds_.push_back({argument, stage, {kind, false}});
      positional_[at].push_back({kind, false});
    };
    if (!has_chain_ || random_.one_in(4)) {
      feed_arg(0, StageId(0), RandomOutput::kTensor);
      if (random_.one_in(3) && stages > 1) {
        feed_arg(0, StageId(random_.between(1, stages - 1)), RandomOutput::kTensor);
        is_regrouped_ = is_regrouped_ || input_requires_grad_;
        note("input fed to two stages");
      }
    } else {
      chained_[0].push_back({RandomOutput::kTensor, false});
    }
    if (has_integers_) {
      if (has_chain_ && random_.one_in(2)) {
        chained_[0].push_back({RandomOutput::kLong, false});
      } else {
        feed_arg(1, any_stage(), RandomOutput::kLong);
      }
    }
    for (int32_t k = 0; k < kwargs_; ++k) {
      if (has_chain_ && random_.one_in(3)) {
        named_[0].emplace_back(kwarg_name(k), Input{kwarg_kind(k), false});
        continue;
      }
      const StageId stage = any_stage();
      model_.ports.feed(kwarg_name(k), {stage, 0, kwarg_name(k)});
      named_[static_cast<std::size_t>(stage.value())].emplace_back(kwarg_name(k),
                                                                   Input{kwarg_kind(k), false});
      if (stage.value() > 0) note("kwarg of a late stage");
    }
  }

  static std::string kwarg_name(int32_t k) { return std::string("m_") + "abc"[k]; }
  static RandomOutput kwarg_kind(int32_t k) {
    constexpr RandomOutput kKinds[] = {RandomOutput::kString, RandomOutput::kTensor,
                                       RandomOutput::kDouble};
    return kKinds[k];
  }

  std::function<Microbatches()> batch_maker(int32_t microbatches) const {
    return [=, dtype = dtype_, seed = seed_, requires_grad = input_requires_grad_,
            has_integers = has_integers_, is_uneven = has_uneven_rows_, kwargs = kwargs_] {
      const RandomScope scope(seed);
      Microbatches batch;
      for (int32_t m = 0; m < microbatches; ++m) {
        const int64_t rows = is_uneven ? 2 + (m * 5 + 1) % 3 : 3;
        Arguments inputs;
        inputs.args.emplace_back(at::randn({rows, kRandomWidth}, dtype));
        if (requires_grad) inputs.args[0].toTensor().requires_grad_();
        if (has_integers) inputs.args.emplace_back(at::randint(5, {rows}, at::kLong));
        const c10::IValue values[] = {"name", at::randn({1, kRandomWidth}, dtype), 0.75};
        for (int32_t k = 0; k < kwargs; ++k) inputs.kwargs.set(kwarg_name(k), values[k]);
        batch.inputs.push_back(std::move(inputs));
        batch.targets.emplace_back(at::randn({rows, kRandomWidth}, dtype));
        batch.weights.push_back(0.25 + 0.5 * m);
      }
      return batch;
    };
  }

  // Stages ------------------------------------------------------------------------------------

  void add_stage(int32_t s, int32_t stages) {
    const std::vector<Input> inputs = close_inputs(s);
    RandomStagePlan plan;
    plan.seed = mix_seed(seed_, 1, 2, static_cast<uint64_t>(s));
    plan.dtype = dtype_;
    plan.hook_calls = hook_calls_;
    std::vector<Input> outputs;
    if (random_.one_in(8)) {
      note("empty stage");
      outputs = inputs;
    } else {
      fill(plan, inputs);
      for (const RandomOutput kind : plan.outputs) outputs.push_back({kind, true});
    }
    model_.bodies.push_back(make_random_stage(plan));
    describe(s, plan);
    if (s + 1 < stages) connect_outputs(s, stages, outputs);
  }

  void describe(int32_t s, const RandomStagePlan& plan) {
    text_ += "stage " + std::to_string(s) + (plan.is_frozen ? " (frozen): " : ": ");
    for (const RandomUse use : plan.uses) text_ += to_string(use) + ", ";
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
      const RandomStagePlan::Step& step = plan.steps[i];
      text_ += std::to_string(i) + " " + to_string(step.op) + "(" + std::to_string(step.a) + ", " +
               std::to_string(step.b) + "), ";
    }
    for (const RandomOutput output : plan.outputs) text_ += to_string(output) + ", ";
    text_ += "\n";
  }

  void fill(RandomStagePlan& plan, const std::vector<Input>& inputs) {
    plan.is_frozen = random_.one_in(6);
    if (plan.is_frozen) note("frozen stage");
    for (int32_t i = random_.between(1, 6); i > 0; --i) {
      const auto op =
          static_cast<RandomOp>(random_.below(static_cast<std::size_t>(RandomOp::kLast)));
      plan.steps.push_back({op, random_.below(64), random_.below(64)});
      note(to_string(op));
    }
    const int32_t outputs = random_.between(1, 3);
    for (int32_t i = 0; i < outputs; ++i) {
      auto kind =
          static_cast<RandomOutput>(random_.below(static_cast<std::size_t>(RandomOutput::kLast)));
      // Tensors more often than the rest; a parameter once, or its gradients are regrouped.
      if (i == 0 || random_.one_in(3)) kind = RandomOutput::kFresh;
      if (kind == RandomOutput::kParameter &&
          std::ranges::count(plan.outputs, RandomOutput::kParameter) > 0) {
        kind = RandomOutput::kTensor;
      }
      plan.outputs.push_back(kind);
      note(to_string(kind));
    }
    const bool is_container =
        plan.outputs[0] == RandomOutput::kTuple || plan.outputs[0] == RandomOutput::kList;
    plan.returns_value = outputs == 1 && !is_container && random_.one_in(2);
    choose_uses(plan, inputs);
  }

  void choose_uses(RandomStagePlan& plan, const std::vector<Input>& inputs) {
    for (const Input& input : inputs) {
      for (int i = num_float_leaves(input.kind); i > 0; --i) {
        auto use = RandomUse::kAlways;
        if (random_.one_in(2)) {
          use = static_cast<RandomUse>(random_.below(static_cast<std::size_t>(RandomUse::kLast)));
        }
        // In the uncut model its other readers would see the change and the hook.
        const bool is_own = input.kind == RandomOutput::kFresh && input.has_one_reader;
        if (!is_own && (use == RandomUse::kInPlace || use == RandomUse::kHook)) {
          use = RandomUse::kAlways;
        }
        plan.uses.push_back(use);
        note(to_string(use));
      }
    }
  }

  // All arguments of a stage in the order of their positions, then by name. Those that come by hand
  // take any positions, those of the chain the ones between.
  std::vector<Input> close_inputs(int32_t s) {
    const auto at = static_cast<std::size_t>(s);
    std::vector<std::optional<Input>> places(positional_[at].size() + chained_[at].size());
    std::vector<int32_t> free;
    for (std::size_t i = 0; i < places.size(); ++i) free.push_back(static_cast<int32_t>(i));
    auto take_place = [&](const Input& input) {
      const std::size_t i = random_.below(free.size());
      const int32_t position = free[i];
      free.erase(free.begin() + static_cast<std::ptrdiff_t>(i));
      places[static_cast<std::size_t>(position)] = input;
      return position;
    };
    for (const Feed& feed : feeds_) {
      if (feed.stage.value() != s) continue;
      model_.ports.feed(feed.argument, {feed.stage, take_place(feed.input)});
    }
    for (const Wire& wire : wires_) {
      if (wire.to.value() != s || !wire.name.empty()) continue;
      model_.ports.connect(wire.from, {wire.to, take_place(wire.input)});
    }
    std::size_t next = 0;
    for (auto& place : places) {
      if (!place) place = chained_[at][next++];
    }
    std::vector<Input> inputs;
    for (const auto& place : places) inputs.push_back(*place);
    std::ranges::sort(named_[at], {}, [](const auto& entry) { return entry.first; });
    for (const auto& [name, input] : named_[at]) inputs.push_back(input);
    return inputs;
  }

  void connect_outputs(int32_t s, int32_t stages, const std::vector<Input>& outputs) {
    for (std::size_t n = 0; n < outputs.size(); ++n) {
      if (has_chain_ && !random_.one_in(3)) {
        chained_[static_cast<std::size_t>(s + 1)].push_back(outputs[n]);
        continue;
      }
      int32_t readers = random_.between(has_chain_ ? 1 : 0, 2);
      if (n == 0 && !random_.one_in(8)) readers = std::max(readers, 1);
      if (readers == 0) note("output without a reader");
      if (readers > 1) is_regrouped_ = true;
      for (int32_t i = 0; i < readers; ++i) {
        const StageId to(random_.between(s + 1, stages - 1));
        if (to.value() > s + 1) note("skip");
        Input input = outputs[n];
        input.has_one_reader = input.has_one_reader && readers == 1;
        wire({StageId(s), static_cast<int32_t>(n)}, to, input);
      }
    }
  }

  void wire(OutputPort from, StageId to, const Input& input) {
    const auto at = static_cast<std::size_t>(to.value());
    std::string name;
    if (random_.one_in(3)) {
      name = "s" + std::to_string(from.stage.value()) + "_" + std::to_string(from.output) + "_" +
             std::to_string(named_[at].size());
      named_[at].emplace_back(name, input);
      model_.ports.connect(from, {to, 0, name});
      note("connected by name");
    } else {
      positional_[at].push_back(input);
    }
    wires_.push_back({from, to, name, input});
  }

  struct Feed {
    int32_t argument;
    StageId stage;
    Input input;
  };
  struct Wire {
    OutputPort from;
    StageId to;
    std::string name;
    Input input;
  };

  Random random_;
  uint64_t seed_;
  TestModel model_;
  c10::ScalarType dtype_ = at::kFloat;
  std::shared_ptr<std::atomic<int64_t>> hook_calls_;
  bool has_chain_ = true;
  bool is_regrouped_ = false;
  bool input_requires_grad_ = false;
  bool has_integers_ = false;
  bool has_uneven_rows_ = false;
  int32_t kwargs_ = 0;
  std::vector<Feed> feeds_;
  std::vector<Wire> wires_;
  // By stage: arguments by hand, by name, and along the chain.
  std::vector<std::vector<Input>> positional_;
  std::vector<std::vector<std::pair<std::string, Input>>> named_;
  std::vector<std::vector<Input>> chained_;
  std::set<std::string> features_;
  std::string text_;
};

}  // namespace

RandomModel make_random_model(uint64_t seed) {
  return Generator(seed).make();
}

}  // namespace stagecraft
