#include <algorithm>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "python/bindings/actions.h"
#include "stagecraft/base/error.h"
#include "stagecraft/schedule/activation_slots.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/json.h"
#include "stagecraft/schedule/load.h"
#include "stagecraft/schedule/passes/add_transfers.h"
#include "stagecraft/schedule/passes/add_waits.h"
#include "stagecraft/schedule/passes/keep_forwards.h"
#include "stagecraft/schedule/passes/limit_sends.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/passes/merge_backward.h"
#include "stagecraft/schedule/passes/place_receives.h"
#include "stagecraft/schedule/passes/reduce_grads.h"
#include "stagecraft/schedule/passes/shard_stages.h"
#include "stagecraft/schedule/table.h"
#include "stagecraft/schedule/verify.h"

namespace stagecraft::python {
namespace {

StageGraph chain_of(const Schedule& schedule) {
  return StageGraph::chain(std::max(schedule.num_stages(), 1));
}

Level level_from(const std::string& name) {
  if (name == "compute") return Level::kCompute;
  if (name == "lowered") return Level::kLowered;
  throw ArgumentError("level: expected compute or lowered, got " + name);
}

std::optional<VerifyMode> mode_from(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  for (const VerifyMode mode :
       {VerifyMode::kTraining, VerifyMode::kForwardOnly, VerifyMode::kPartial}) {
    if (to_string(mode) == *name) return mode;
  }
  throw ArgumentError("mode: expected training, forward-only or partial, got " + *name);
}

// A schedule of given lists, with the placement of the caller (-1: no rank) or the inferred one.
Schedule from_lists(const py::sequence& codes, const std::optional<std::vector<int32_t>>& ranks,
                    const std::optional<std::string>& level) {
  std::vector<ActionList> lists = lists_from_codes(codes);
  const Level actual = level ? level_from(*level) : infer_level(lists);
  if (!ranks) {
    Placement placement = infer_placement(lists);
    return {actual, std::move(placement), std::move(lists)};
  }
  std::vector<std::optional<Rank>> stage_to_rank;
  stage_to_rank.reserve(ranks->size());
  for (const int32_t rank : *ranks) {
    stage_to_rank.push_back(rank < 0 ? std::nullopt : std::optional<Rank>(Rank(rank)));
  }
  Placement placement = Placement::of(std::move(stage_to_rank), static_cast<int32_t>(lists.size()));
  return {actual, std::move(placement), std::move(lists)};
}

UnshardLookahead lookahead_from(const std::variant<std::string, std::vector<int32_t>>& lookahead) {
  if (const auto* numbers = std::get_if<std::vector<int32_t>>(&lookahead)) return *numbers;
  const std::string& name = std::get<std::string>(lookahead);
  if (name == "full") return Lookahead::kFull;
  if (name == "auto") return Lookahead::kAuto;
  throw ArgumentError("unshard_lookahead: expected full, auto or a number for each rank, got " +
                      name);
}

std::optional<ReductionWait> reduction_wait_from(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  if (*name == "at_once") return ReductionWait::kAtOnce;
  if (*name == "deferred") return ReductionWait::kDeferred;
  throw ArgumentError("reduction_wait: expected at_once or deferred, got " + *name);
}

Schedule lower_with(const Schedule& schedule, const std::string& target, bool shard,
                    int32_t max_active_stages,
                    const std::variant<std::string, std::vector<int32_t>>& lookahead,
                    bool reduce_grads, const std::optional<std::string>& reduction_wait,
                    std::optional<int32_t> prefetch, std::optional<int32_t> max_sends,
                    const std::optional<std::string>& mode) {
  LowerOptions options;
  const auto found = find_lower_target(target);
  if (!found) {
    throw ArgumentError("target: expected stagecraft, torch-2.13 or torch-2.15, got " + target);
  }
  options.target = *found;
  options.shard = shard;
  options.max_active_stages = max_active_stages;
  options.unshard_lookahead = lookahead_from(lookahead);
  options.reduce_grads = reduce_grads;
  options.reduction_wait = reduction_wait_from(reduction_wait);
  options.prefetch = prefetch;
  options.max_sends = max_sends;
  options.mode = mode_from(mode);
  return lower(schedule, options);
}

py::list verify_to_dicts(const Schedule& schedule, const std::optional<std::string>& mode,
                         std::optional<int32_t> microbatches) {
  const Verdict verdict = verify(schedule, {.mode = mode_from(mode).value_or(infer_mode(schedule)),
                                            .microbatches = microbatches});
  py::list findings;
  for (const Finding& finding : verdict.findings) {
    py::dict entry;
    entry["kind"] = std::string(to_string(finding.kind));
    entry["rank"] = finding.rank ? py::object(py::int_(finding.rank->value())) : py::none();
    entry["position"] = finding.position;
    entry["action"] = finding.action;
    entry["message"] = finding.message;
    entry["cycle"] = finding.cycle;
    entry["text"] = to_string(finding);
    findings.append(entry);
  }
  return findings;
}

Schedule add_transfers_lenient(const Schedule& schedule) {
  const StageGraph graph = chain_of(schedule);
  verify_or_throw(schedule, graph, "_add_send_recv",
                  {.mode = VerifyMode::kPartial, .mixed_backward = true});
  return add_transfers(schedule, graph, Verified::kYes);
}

py::dict activation_slots_of(const Schedule& schedule, int32_t rank,
                             const std::optional<std::vector<int32_t>>& stages,
                             bool by_microbatch) {
  const SlotGranularity granularity =
      by_microbatch ? SlotGranularity::kMicrobatch : SlotGranularity::kStageMicrobatch;
  std::vector<StageId> chosen;
  for (const int32_t stage : stages.value_or(std::vector<int32_t>{})) chosen.emplace_back(stage);
  const ActivationSlots slots = stages ? activation_slots(schedule, Rank(rank), chosen, granularity)
                                       : activation_slots(schedule, Rank(rank), granularity);
  py::dict result;
  for (const ActivationSlots::Activation& activation : slots.activations()) {
    result[py::make_tuple(activation.stage.value(), activation.microbatch.value())] =
        py::make_tuple(activation.slot, activation.first, activation.last);
  }
  return result;
}

py::list list_kinds() {
  py::list kinds;
  for (const ScheduleKind& kind : schedule_kinds()) {
    py::dict entry;
    entry["name"] = std::string(kind.name);
    entry["summary"] = std::string(kind.summary);
    entry["stages_per_rank"] = kind.default_stages_per_rank;
    entry["min_stages_per_rank"] = kind.stages_per_rank.min;
    entry["max_stages_per_rank"] = kind.stages_per_rank.max;
    entry["has_backward"] = kind.has_backward;
    kinds.append(entry);
  }
  return kinds;
}

void bind_passes(py::class_<Schedule>& schedule) {
  schedule
      .def("lower", &lower_with, py::arg("target") = "stagecraft", py::arg("shard") = true,
           py::arg("max_active_stages") = kDefaultActiveStages,
           py::arg("unshard_lookahead") = "full", py::arg("reduce_grads") = true,
           py::arg("reduction_wait") = py::none(), py::arg("prefetch") = py::none(),
           py::arg("max_sends") = py::none(), py::arg("mode") = py::none())
      .def(
          "shard_stages",
          [](const Schedule& self, int32_t max_active_stages,
             const std::variant<std::string, std::vector<int32_t>>& lookahead) {
            return shard_stages(self, max_active_stages, lookahead_from(lookahead));
          },
          py::arg("max_active_stages") = kDefaultActiveStages, py::arg("lookahead") = "full")
      .def("reduce_grads", [](const Schedule& self) { return reduce_grads(self); })
      .def(
          "add_reduction_waits",
          [](const Schedule& self, bool deferred) {
            return add_reduction_waits(
                self, deferred ? ReductionWait::kDeferred : ReductionWait::kAtOnce);
          },
          py::arg("deferred") = false)
      .def("merge_backward", [](const Schedule& self) { return merge_backward(self); })
      .def("keep_forwards", [](const Schedule& self) { return keep_forwards(self); })
      .def("add_transfers", &add_transfers_lenient)
      .def("add_send_waits", [](const Schedule& self) { return add_send_waits(self); })
      .def(
          "limit_sends",
          [](const Schedule& self, int32_t limit) { return limit_sends(self, limit); },
          py::arg("limit"))
      .def(
          "place_receives",
          [](const Schedule& self, int32_t prefetch) { return place_receives(self, prefetch); },
          py::arg("prefetch"));
}

}  // namespace

void bind_schedule(py::module_& module) {
  py::class_<Schedule> schedule(module, "Schedule",
                                "Lists of actions, a rank each, and where the stages are.");
  schedule
      .def_static(
          "build",
          [](const std::string& name, int32_t ranks, int32_t microbatches,
             std::optional<int32_t> stages_per_rank) {
            return build_schedule(
                name,
                {.ranks = ranks, .microbatches = microbatches, .stages_per_rank = stages_per_rank});
          },
          py::arg("name"), py::arg("ranks"), py::arg("microbatches"),
          py::arg("stages_per_rank") = py::none())
      .def_static("from_lists", &from_lists, py::arg("lists"), py::arg("ranks") = py::none(),
                  py::arg("level") = py::none())
      .def_static(
          "parse", [](const std::string& text) { return parse_schedule(text); }, py::arg("text"))
      .def_static(
          "read", [](const std::string& path) { return read_schedule(path); }, py::arg("path"))
      .def_property_readonly(
          "level", [](const Schedule& self) { return std::string(to_string(self.level())); })
      .def_property_readonly("num_ranks", &Schedule::num_ranks)
      .def_property_readonly("num_stages", &Schedule::num_stages)
      .def_property_readonly("num_microbatches", &Schedule::num_microbatches)
      .def_property_readonly("num_actions", &Schedule::num_actions)
      .def_property_readonly("ranks",
                             [](const Schedule& self) {
                               std::vector<int32_t> ranks;
                               for (const Rank rank : self.placement().ranks()) {
                                 ranks.push_back(rank.value());
                               }
                               return ranks;
                             })
      .def("lists", [](const Schedule& self) { return to_python(self.lists()); })
      .def("to_csv", [](const Schedule& self) { return to_csv(self); })
      .def("to_json", [](const Schedule& self) { return to_json(self); })
      .def("to_table", [](const Schedule& self) { return to_table(self); })
      .def("verify", &verify_to_dicts, py::arg("mode") = py::none(),
           py::arg("microbatches") = py::none())
      .def(
          "check",
          [](const Schedule& self, const std::optional<std::string>& mode,
             std::optional<int32_t> microbatches) {
            verify_or_throw(
                self, chain_of(self), "schedule",
                {.mode = mode_from(mode).value_or(infer_mode(self)), .microbatches = microbatches});
          },
          py::arg("mode") = py::none(), py::arg("microbatches") = py::none())
      .def("activation_slots", &activation_slots_of, py::arg("rank"),
           py::arg("stages") = py::none(), py::arg("by_microbatch") = false)
      .def("__eq__", [](const Schedule& self, const Schedule& other) { return self == other; });
  bind_passes(schedule);
  module.def("schedule_kinds", &list_kinds);
  module.def("set_action_class", &set_action_class, py::arg("action"), py::arg("types"));
}

}  // namespace stagecraft::python
