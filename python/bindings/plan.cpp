#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "stagecraft/base/check.h"
#include "stagecraft/plan/make_plan.h"
#include "stagecraft/plan/plan_file.h"
#include "stagecraft/plan/plan_text.h"

namespace stagecraft::python {

namespace py = pybind11;

namespace {

RecomputeChoice recompute_from(const std::string& name) {
  if (name == "auto") return RecomputeChoice::kAuto;
  if (name == "none") return RecomputeChoice::kNone;
  if (name == "all") return RecomputeChoice::kAll;
  throw ArgumentError("recompute: expected auto, none or all, got " + name);
}

std::vector<int32_t> recomputed_stages(const PlanChoice& choice) {
  std::vector<int32_t> stages;
  for (std::size_t s = 0; s < choice.recompute.size(); ++s) {
    if (choice.recompute[s]) stages.push_back(static_cast<int32_t>(s));
  }
  return stages;
}

// A plan from the text of a file with costs of layers (parse_layer_file).
py::dict make_plan_from(const std::string& layers, int32_t ranks, std::optional<double> memory,
                        int32_t microbatches, double time_limit, uint64_t seed,
                        const std::vector<int32_t>& stages_per_rank, const std::string& recompute) {
  const LayerFile file = parse_layer_file(layers);
  PlanProblem problem;
  problem.layers = file.layers;
  problem.ranks =
      file.ranks.empty() ? same_ranks(ranks, memory ? memory : file.memory) : file.ranks;
  problem.link = file.link;
  problem.links = file.links;
  problem.sizes = file.sizes;
  problem.input_bytes = file.input_bytes;
  problem.input_gradient = file.input_gradient;
  problem.units = file.units;
  problem.microbatches = microbatches;
  PlanOptions options;
  options.time_limit = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(time_limit));
  options.seed = seed;
  options.space.stages_per_rank = stages_per_rank;
  options.space.recompute = recompute_from(recompute);
  // Ctrl-C ends the search. Signals are checked when a better plan is found.
  std::atomic<bool> cancel{false};
  options.cancel = &cancel;
  options.progress = [&](const PlanProgress&) {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) cancel = true;
  };
  const Plan plan = [&] {
    const py::gil_scoped_release release;
    return make_plan(problem, options);
  }();
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  py::dict answer;
  answer["cuts"] = plan.boundary_names();
  answer["schedule"] = plan.schedule;
  answer["schedule_name"] = plan.best.schedule;
  answer["time"] = plan.best.value;
  answer["bound"] = plan.best.bound.value;
  answer["any_split_bound"] = plan.any_split.value;
  answer["bubble"] = plan.best.result.bubble;
  answer["peaks"] = plan.best.result.peaks;
  answer["stages_per_rank"] = plan.best.choice.stages_per_rank;
  answer["recompute"] = recomputed_stages(plan.best.choice);
  answer["why"] = plan_headline(plan) + plan_unfit(plan) + plan_bounds(plan);
  answer["text"] = to_text(plan);
  answer["file"] = to_plan_file(to_saved(plan));
  return answer;
}

}  // namespace

void bind_plan(py::module_& module) {
  module.def("make_plan", &make_plan_from, py::arg("layers"), py::arg("ranks"), py::arg("memory"),
             py::arg("microbatches"), py::arg("time_limit"), py::arg("seed"),
             py::arg("stages_per_rank"), py::arg("recompute"));
}

}  // namespace stagecraft::python
