#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "python/bindings/simulated.h"
#include "stagecraft/schedule/slot.h"
#include "stagecraft/sim/compare_schedules.h"
#include "stagecraft/sim/cost_model.h"
#include "stagecraft/sim/unit_steps.h"

namespace stagecraft::python {
namespace {

std::string cause_name(PathStep::Cause cause) {
  switch (cause) {
    case PathStep::Cause::kStart:
      return "start";
    case PathStep::Cause::kRank:
      return "rank";
    case PathStep::Cause::kValue:
      return "value";
    case PathStep::Cause::kTransfer:
      return "transfer";
    case PathStep::Cause::kGather:
      return "gather";
  }
  return "";
}

py::list critical_path(const Simulated& self) {
  py::list path;
  for (const PathStep& step : self.result.critical_path) {
    const auto list = self.schedule.actions(step.rank);
    const Interval& interval = self.result.timeline[step.rank.position()][step.offset];
    path.append(py::make_tuple(step.rank.value(), to_string(slot_at(list, step.offset)),
                               interval.start, interval.end, cause_name(step.cause)));
  }
  return path;
}

// (action, start, end) of the rank's slots; the parts of an overlap one by one.
py::list timeline(const Simulated& self, int32_t rank) {
  py::list result;
  const auto list = self.schedule.actions(Rank(rank));
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].is_idle() || list[i].is_overlap()) continue;
    const Interval& interval = self.result.timeline[static_cast<std::size_t>(rank)][i];
    result.append(py::make_tuple(to_string(list[i]), interval.start, interval.end));
  }
  return result;
}

py::list unit_steps(const Schedule& schedule) {
  const StageGraph graph = StageGraph::chain(std::max(schedule.num_stages(), 1));
  verify_or_throw(schedule, graph, "_simulate_comms_compute",
                  {.mode = VerifyMode::kPartial, .mixed_backward = true});
  const UnitSteps steps = simulate_unit_steps(schedule, graph, Verified::kYes);
  py::list ranks;
  for (const auto& rank : steps.ranks) {
    py::list done;
    for (const UnitSteps::Done& entry : rank) done.append(py::make_tuple(entry.slot, entry.step));
    ranks.append(done);
  }
  return ranks;
}

py::dict compare(int32_t ranks, int32_t microbatches, std::optional<int32_t> stages_per_rank,
                 const CostModel& costs) {
  const ScheduleComparison comparison = compare_schedules(
      {.ranks = ranks, .microbatches = microbatches, .stages_per_rank = stages_per_rank},
      [&](std::string_view, const Schedule& schedule, int32_t parts) {
        return simulate(schedule, divide_costs(costs, parts));
      });
  py::list schedules;
  for (const ComparedSchedule& entry : comparison.schedules) {
    py::dict row;
    row["name"] = entry.name;
    row["stages_per_rank"] = entry.stages_per_rank;
    row["makespan"] = entry.result.makespan;
    row["bubble"] = entry.result.bubble;
    row["exposed_transfer"] = entry.result.exposed_transfer;
    row["transfers"] = entry.result.transfers;
    row["peak_memory"] = entry.result.peak_memory;
    row["over_cap"] = !entry.result.over_cap.empty();
    schedules.append(row);
  }
  py::list unfit;
  for (const UnfitSchedule& entry : comparison.unfit) {
    unfit.append(py::make_tuple(entry.name, entry.stages_per_rank, entry.reason));
  }
  py::dict result;
  result["schedules"] = schedules;
  result["unfit"] = unfit;
  return result;
}

}  // namespace

void bind_sim(py::module_& module) {
  py::class_<CostModel>(module, "CostModel", "What actions, transfers and memory cost.")
      .def_static(
          "from_json", [](const std::string& json) { return parse_cost_file(json); },
          py::arg("json"))
      .def_static(
          "parse", [](const std::string& text) { return parse_costs(text); }, py::arg("text"))
      .def("__eq__", [](const CostModel& self, const CostModel& other) { return self == other; });

  py::class_<RankStats>(module, "RankStats", "What one rank did.")
      .def_readonly("first_start", &RankStats::first_start)
      .def_readonly("last_end", &RankStats::last_end)
      .def_readonly("busy", &RankStats::busy)
      .def_readonly("bubble", &RankStats::bubble)
      .def_readonly("exposed_transfer", &RankStats::exposed_transfer)
      .def_readonly("peak_memory", &RankStats::peak_memory)
      .def_readonly("transfers_sent", &RankStats::transfers_sent);

  py::class_<Simulated>(module, "Simulated", "A schedule and the results of its simulation.")
      .def_property_readonly("makespan", [](const Simulated& s) { return s.result.makespan; })
      .def_property_readonly("span", [](const Simulated& s) { return s.result.span; })
      .def_property_readonly("bubble", [](const Simulated& s) { return s.result.bubble; })
      .def_property_readonly("exposed_transfer",
                             [](const Simulated& s) { return s.result.exposed_transfer; })
      .def_property_readonly("transfers", [](const Simulated& s) { return s.result.transfers; })
      .def_property_readonly("peak_memory", [](const Simulated& s) { return s.result.peak_memory; })
      .def_property_readonly("ranks", [](const Simulated& s) { return s.result.ranks; })
      .def_property_readonly("critical_path", &critical_path)
      .def_property_readonly("over_cap",
                             [](const Simulated& s) {
                               std::vector<int32_t> ranks;
                               for (const OverCap& entry : s.result.over_cap)
                                 ranks.push_back(entry.rank.value());
                               return ranks;
                             })
      .def("timeline", &timeline, py::arg("rank"));

  module.def(
      "simulate",
      [](const Schedule& schedule, const CostModel& costs) {
        return Simulated{schedule, simulate(schedule, costs)};
      },
      py::arg("schedule"), py::arg("costs"));
  module.def("unit_steps", &unit_steps, py::arg("schedule"));
  module.def("compare", &compare, py::arg("ranks"), py::arg("microbatches"),
             py::arg("stages_per_rank"), py::arg("costs"));
}

}  // namespace stagecraft::python
