#include "stagecraft/plan/correct_layers.h"

#include <algorithm>
#include <cstddef>

#include "stagecraft/base/assert.h"

namespace stagecraft {
namespace {

/// The layers of one stage.
class StageLayers {
 public:
  explicit StageLayers(std::span<PlanLayer> layers) : layers_(layers) {
    // Layers without a full backward of their own get I + W, because I and W are scaled separately.
    for (PlanLayer& layer : layers_) {
      layer.cost.backward = layer.cost.full_backward();
      layer.recompute = layer.recompute.value_or(layer.cost.forward);
    }
  }

  template <typename Get>
  double sum(Get&& get) const {
    double all = 0;
    for (PlanLayer& layer : layers_) all += get(layer);
    return all;
  }
  template <typename Get>
  double most(Get&& get) const {
    double largest = 0;
    for (PlanLayer& layer : layers_) largest = std::max<double>(largest, get(layer));
    return largest;
  }

  /// Scales the values that `get` refers to, so that their sum is `target`. If all of them are 0,
  /// the layers share the target evenly.
  template <typename Get>
  void scale_sum(double target, Get&& get) {
    const double all = sum(get);
    for (PlanLayer& layer : layers_) {
      get(layer) = all > 0 ? get(layer) * (target / all) : target / size();
    }
  }
  template <typename Get>
  void scale_most(double target, Get&& get) {
    const double largest = most(get);
    for (PlanLayer& layer : layers_)
      get(layer) = largest > 0 ? get(layer) * (target / largest) : target;
  }
  template <typename Get>
  void multiply(double factor, Get&& get) {
    for (PlanLayer& layer : layers_) get(layer) *= factor;
  }

 private:
  double size() const { return static_cast<double>(layers_.size()); }

  std::span<PlanLayer> layers_;
};

double& forward_of(PlanLayer& layer) {
  return layer.cost.forward;
}
double& input_of(PlanLayer& layer) {
  return layer.cost.backward_input;
}
double& weight_of(PlanLayer& layer) {
  return layer.cost.backward_weight;
}
double& full_of(PlanLayer& layer) {
  return *layer.cost.backward;
}
double& again_of(PlanLayer& layer) {
  return *layer.recompute;
}

void correct_backward(StageLayers& layers, const MeasuredStage& stage, bool is_whole_weight,
                      bool recomputes) {
  const double both = layers.sum(input_of) + layers.sum(weight_of);
  const double full = layers.sum(full_of);
  if (stage.backward_input && stage.backward_weight) {
    const double measured = *stage.backward_input + *stage.backward_weight;
    if (is_whole_weight && both > 0) {
      // In the composed stage, W includes all of I.
      layers.multiply(measured / both, input_of);
      layers.multiply(measured / both, weight_of);
    } else {
      layers.scale_sum(*stage.backward_input, input_of);
      layers.scale_sum(*stage.backward_weight, weight_of);
    }
    if (!stage.backward && both > 0) layers.multiply(measured / both, full_of);
  }
  if (!stage.backward) return;
  // A part of the time of B is the forward that it runs again.
  const double again = recomputes ? layers.sum(again_of) : 0;
  const double measured = std::max(*stage.backward - again, 0.1 * *stage.backward);
  if (recomputes) layers.scale_sum(*stage.backward - measured, again_of);
  layers.scale_sum(measured, full_of);
  if (!stage.backward_input && full > 0) {
    layers.multiply(measured / full, input_of);
    layers.multiply(measured / full, weight_of);
  }
}

void correct_memory(StageLayers& layers, const MeasuredStage& stage, bool is_whole_weight,
                    bool is_split) {
  const auto held = [](PlanLayer& layer) -> double& { return layer.cost.memory_forward; };
  const auto later = [](PlanLayer& layer) -> double& { return layer.cost.memory_freed_by_weight; };
  if (stage.memory_forward) {
    const double before = layers.sum(held);
    layers.scale_sum(*stage.memory_forward, held);
    if (stage.memory_input && !is_whole_weight) {
      layers.scale_sum(*stage.memory_input, later);
    } else if (before > 0) {
      layers.multiply(*stage.memory_forward / before, later);
    }
  }
  layers.sum([](PlanLayer& layer) {
    return layer.cost.memory_freed_by_input =
               layer.cost.memory_forward - layer.cost.memory_freed_by_weight;
  });
  if (stage.peak_forward) {
    layers.scale_most(*stage.peak_forward, [](PlanLayer& l) -> double& { return l.peak_forward; });
  }
  const auto input = [](PlanLayer& layer) -> double& { return layer.peak_input; };
  const auto weight = [](PlanLayer& layer) -> double& { return layer.peak_weight; };
  if (!is_split || is_whole_weight) {
    // The composed stage has the larger of both peaks.
    const double target = stage.peak_weight.value_or(stage.peak_input.value_or(0));
    const double most = std::max(layers.most(input), layers.most(weight));
    if (most > 0 && target > 0) {
      layers.multiply(target / most, input);
      layers.multiply(target / most, weight);
    }
    return;
  }
  if (stage.peak_input) layers.scale_most(*stage.peak_input, input);
  if (stage.peak_weight) layers.scale_most(*stage.peak_weight, weight);
}

}  // namespace

std::vector<PlanLayer> correct_layers(const PlanProblem& problem, const PlanChoice& choice,
                                      std::span<const MeasuredStage> stages) {
  SC_ASSERT(stages.size() == choice.begins.size() && choice.recompute.size() == stages.size());
  SC_ASSERT(choice.begins.empty() ||
            static_cast<std::size_t>(choice.begins.back()) < problem.layers.size());
  std::vector<PlanLayer> layers = problem.layers;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto first = static_cast<std::size_t>(choice.begins[s]);
    const std::size_t end = s + 1 < choice.begins.size()
                                ? static_cast<std::size_t>(choice.begins[s + 1])
                                : layers.size();
    const MeasuredStage& stage = stages[s];
    const std::span<PlanLayer> all(layers);
    StageLayers own(all.subspan(first, end - first));
    const bool is_split = stage.backward_input.has_value();
    const bool is_whole_weight = s == 0 && !problem.input_gradient && is_split;
    if (stage.forward) {
      const double before = own.sum(forward_of);
      own.scale_sum(*stage.forward, forward_of);
      if (before > 0) own.multiply(*stage.forward / before, again_of);
    }
    correct_backward(own, stage, is_whole_weight, choice.recompute[s]);
    if (!choice.recompute[s]) correct_memory(own, stage, is_whole_weight, is_split);
  }
  return layers;
}

}  // namespace stagecraft
