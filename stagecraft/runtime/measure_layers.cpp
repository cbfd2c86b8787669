#include "stagecraft/runtime/measure_layers.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/partition/boundaries.h"
#include "stagecraft/partition/modules.h"
#include "stagecraft/partition/node_costs.h"
#include "stagecraft/partition/split.h"
#include "stagecraft/partition/split_candidates.h"
#include "stagecraft/runtime/measure_support.h"
#include "stagecraft/runtime/measured_memory.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/runtime/record/stage_times.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {
namespace {

/// All forwards, then all backwards, stages in order: every rank has work at the same time.
Schedule measuring_schedule(int32_t stages, int32_t ranks, int32_t microbatches, bool split) {
  std::vector<std::optional<Rank>> rank_of;
  for (int32_t s = 0; s < stages; ++s) {
    rank_of.emplace_back(Rank(static_cast<int32_t>(static_cast<int64_t>(s) * ranks / stages)));
  }
  Placement placement = Placement::of(std::move(rank_of), ranks);
  std::vector<ActionList> lists(static_cast<std::size_t>(ranks));
  for (int32_t r = 0; r < ranks; ++r) {
    ActionList& list = lists[static_cast<std::size_t>(r)];
    const auto own = placement.stages(Rank(r));
    for (int32_t m = 0; m < microbatches; ++m) {
      for (const StageId s : own) list.emplace_back(s, ActionType::kForward, MicrobatchId(m));
    }
    for (int32_t m = 0; m < microbatches; ++m) {
      for (auto s = own.rbegin(); s != own.rend(); ++s) {
        if (!split) {
          list.emplace_back(*s, ActionType::kBackward, MicrobatchId(m));
          continue;
        }
        list.emplace_back(*s, ActionType::kBackwardInput, MicrobatchId(m));
        list.emplace_back(*s, ActionType::kBackwardWeight, MicrobatchId(m));
      }
    }
  }
  return {Level::kCompute, std::move(placement), std::move(lists)};
}

/// Runs steps of one schedule and collects the times of all stages.
class Measured {
 public:
  Measured(const Pipe& pipe, const Loss& loss, const Microbatches& batch,
           const MeasureOptions& options, bool split)
      : times_(static_cast<std::size_t>(pipe.num_stages())) {
    const int32_t ranks = std::min(options.ranks, pipe.num_stages());
    const int32_t microbatches = std::max(2, 2 * ranks);
    Pipeline run(pipe, {.source = ScheduleSource::fixed(
                            measuring_schedule(pipe.num_stages(), ranks, microbatches, split)),
                        .loss = loss,
                        .seed = 0,
                        .threads_per_rank = options.threads_per_rank});
    detail::record_device_time(run);
    int32_t counted = 0;
    double spent = 0;
    // Measuring memory costs time, so a step of its own does it: the second, which finds gradients.
    for (int32_t i = 0; counted < options.steps; ++i) {
      run.step(detail::some_microbatches(batch, microbatches),
               {.outputs = OutputMode::kNone, .measure_memory = i == 1});
      if (i == 1) recorded_ = run.recorded_run();
      spent += run.report().makespan;
      const bool is_late = spent > static_cast<double>(options.time_limit.count());
      if (i < 2 || (i <= options.warm_up && !is_late)) continue;
      add(stage_times(run.recording()));
      ++counted;
      if (is_late) break;
    }
    detail::clear_gradients(run);
  }

  const std::vector<StageTimes>& times() const { return times_; }
  const RecordedRun& recorded() const { return *recorded_; }

 private:
  void add(const std::vector<StageTimes>& step) {
    const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (std::size_t s = 0; s < step.size(); ++s) {
      append(times_[s].forward, step[s].forward);
      append(times_[s].backward_input, step[s].backward_input);
      append(times_[s].backward_weight, step[s].backward_weight);
      append(times_[s].backward, step[s].backward);
    }
  }

  std::vector<StageTimes> times_;
  std::optional<RecordedRun> recorded_;
};

double bytes_of(const c10::IValue& value) {
  double sum = 0;
  for (const c10::IValue& leaf : tree::flatten(value).leaves) {
    if (leaf.isTensor()) sum += static_cast<double>(leaf.toTensor().nbytes());
  }
  return sum;
}

/// For one microbatch, by stage: bytes of the values that cross the boundary after it. A value that
/// a later stage reads crosses all boundaries before that stage.
std::vector<double> crossing_bytes(const Pipe& pipe, const Arguments& arguments) {
  std::vector<std::vector<c10::IValue>> outputs;
  std::vector<Stage> stages = pipe.build_stages();
  for (int32_t s = 0; s < pipe.num_stages(); ++s) {
    const Arguments own = pipe.arguments_of(StageId(s), arguments.args, arguments.kwargs, outputs);
    outputs.push_back(outputs_of(stages[static_cast<std::size_t>(s)].forward(
        MicrobatchId(0), own, {.is_training = false, .seed = 0, .draw = 0})));
  }
  std::map<std::pair<int32_t, int32_t>, int32_t> last_readers;
  for (const Ports::Connection& connection : pipe.ports().connections()) {
    int32_t& last = last_readers[{connection.from.stage.value(), connection.from.output}];
    last = std::max(last, connection.to.stage.value());
  }
  std::vector<double> bytes(stages.size(), 0.0);
  for (const auto& [from, last] : last_readers) {
    const auto& [stage, output] = from;
    const double size =
        bytes_of(outputs[static_cast<std::size_t>(stage)].at(static_cast<std::size_t>(output)));
    for (int32_t s = stage; s < last; ++s) bytes[static_cast<std::size_t>(s)] += size;
  }
  return bytes;
}

}  // namespace

std::vector<std::string> layer_names(const Graph& graph, std::size_t most) {
  const NodeCosts costs(graph);
  const std::size_t depth = ModuleExtents(graph).layer_depth();
  std::vector<std::string> names;
  for (const Boundary& boundary : find_boundaries(graph, costs)) {
    if (!boundary.is_legal() || !boundary.begins_module(depth)) continue;
    const auto begins =
        std::find_if(boundary.names.begin(), boundary.names.end(),
                     [](const std::string& name) { return !name.ends_with(kModuleEnd); });
    if (begins != boundary.names.end()) names.push_back(*begins);
  }
  if (names.size() <= most) return names;
  std::vector<std::string> fewer;
  const std::size_t step = (names.size() + most - 1) / most;
  for (std::size_t i = 0; i < names.size(); i += step) fewer.push_back(names[i]);
  return fewer;
}

std::vector<PlanLayer> measure_layers(const Pipe& pipe, const Loss& loss, const Microbatches& batch,
                                      const std::vector<std::string>& names,
                                      const MeasureOptions& options) {
  require<ArgumentError>(!batch.inputs.empty(), "measuring layers needs at least one microbatch");
  require<ArgumentError>(names.size() + 1 == static_cast<std::size_t>(pipe.num_stages()),
                         "there are {} names for {} stages but the first", names.size(),
                         pipe.num_stages() - 1);
  const Measured apart(pipe, loss, batch, options, true);
  const Measured whole(pipe, loss, batch, options, false);
  const std::vector<double> bytes = crossing_bytes(pipe, batch.inputs.front());
  constexpr double kMilliseconds = 1e-3;
  std::vector<PlanLayer> layers;
  for (std::size_t s = 0; s < bytes.size(); ++s) {
    PlanLayer& layer = layers.emplace_back();
    layer.name = s == 0 ? "" : names[s - 1];
    const StageTimes& times = apart.times()[s];
    layer.cost.forward = kMilliseconds * detail::median_of(times.forward);
    layer.cost.backward_input = kMilliseconds * detail::median_of(times.backward_input);
    layer.cost.backward_weight = kMilliseconds * detail::median_of(times.backward_weight);
    layer.cost.backward = kMilliseconds * detail::median_of(whole.times()[s].backward);
    layer.output_bytes = bytes[s];
    const StageState& state = apart.recorded().stages[s];
    layer.weights = static_cast<double>(state.parameter_bytes + state.gradient_bytes);
    layer.gradients = static_cast<double>(state.gradient_bytes);
    layer.state = 2.0 * *layer.gradients;
    if (!apart.recorded().memory.empty())
      detail::set_layer_memory(layer, apart.recorded().memory[s]);
  }
  return layers;
}

std::vector<PlanLayer> estimate_layers(const Graph& graph, const std::vector<std::string>& names) {
  const NodeCosts costs(graph);
  Split split;
  for (const std::string& name : names) split.points.emplace_back(name, SplitPoint::kBeginning);
  const SplitPositions positions =
      names.empty() ? SplitPositions() : find_split_positions(graph, split);
  const SplitCandidates candidates(graph);
  std::vector<PlanLayer> layers;
  constexpr double kMillion = 1e6;
  for (std::size_t l = 0; l <= positions.size(); ++l) {
    const std::size_t first = l == 0 ? 0 : positions[l - 1];
    const std::size_t end = l < positions.size() ? positions[l] : costs.flops.size();
    PlanLayer& layer = layers.emplace_back();
    layer.name = l == 0 ? "" : names[l - 1];
    double flops = 0;
    double parameters = 0;
    double activations = 0;
    for (std::size_t n = first; n < end; ++n) {
      flops += static_cast<double>(costs.flops[n]);
      parameters += static_cast<double>(costs.parameter_bytes[n]);
      for (const Argument& result : graph.parts().nodes[n].results) {
        if (const ValueId* value = result.value()) {
          activations += static_cast<double>(example_bytes(graph, *value));
        }
      }
    }
    layer.cost.forward = layer.cost.backward_input = layer.cost.backward_weight = flops / kMillion;
    layer.cost.memory_forward = activations;
    layer.cost.memory_freed_by_weight = 0.5 * activations;
    layer.cost.memory_freed_by_input = activations - layer.cost.memory_freed_by_weight;
    layer.output_bytes =
        l < positions.size() ? static_cast<double>(candidates.bytes(positions[l])) : 0;
    layer.weights = 2 * parameters;
    layer.gradients = parameters;
    layer.state = 2 * parameters;
  }
  return layers;
}

}  // namespace stagecraft
