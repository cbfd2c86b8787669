#include "stagecraft/runtime/runner.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include <torch/csrc/utils/pybind.h>

#include "python/bindings/handler.h"
#include "python/bindings/python_call.h"
#include "python/bindings/runner.h"
#include "python/bindings/stage.h"
#include "python/bindings/transport.h"
#include "python/bindings/values.h"
#include "python/bindings/wait_watch.h"
#include "stagecraft/base/check.h"
#include "stagecraft/base/wait_tick.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/schedule/load.h"
#include "stagecraft/schedule/text.h"

namespace stagecraft::python {
namespace {

template <typename T>
T get(const py::dict& options, const char* name, T otherwise) {
  if (!options.contains(name)) return otherwise;
  const py::object value = options[name];
  return value.is_none() ? otherwise : value.cast<T>();
}

LowerOptions lowering_of(const py::dict& options) {
  LowerOptions lowering;
  lowering.max_active_stages = get(options, "max_active_stages", lowering.max_active_stages);
  lowering.shard = get(options, "shard", lowering.shard);
  lowering.reduce_grads = get(options, "reduce_grads", lowering.reduce_grads);
  if (options.contains("prefetch") && !py::object(options["prefetch"]).is_none()) {
    lowering.prefetch = options["prefetch"].cast<int32_t>();
  }
  return lowering;
}

// Either the name of a builder or the text of a schedule.
ScheduleSource source_of(const py::dict& options) {
  const LowerOptions lowering = lowering_of(options);
  if (options.contains("text")) {
    Schedule schedule = parse_schedule(options["text"].cast<std::string>());
    if (schedule.level() == Level::kLowered) return ScheduleSource::fixed(std::move(schedule));
    return ScheduleSource::fixed(std::move(schedule), lowering);
  }
  return ScheduleSource::named(options["name"].cast<std::string>(),
                               options["ranks"].cast<int32_t>(),
                               options["stages_per_rank"].cast<std::optional<int32_t>>(), lowering);
}

InputPort input_port(py::handle entry) {
  const auto port = py::reinterpret_borrow<py::tuple>(entry);
  InputPort result{StageId(port[0].cast<int32_t>())};
  if (py::isinstance<py::str>(port[1])) {
    result.name = port[1].cast<std::string>();
  } else {
    result.position = port[1].cast<int32_t>();
  }
  return result;
}

// {"stages": n, "chain": bool, "connections": [(from, to)], "feeds": [(argument, to)]}.
Ports ports_of(const py::dict& given) {
  const auto stages = given["stages"].cast<int32_t>();
  Ports ports = given["chain"].cast<bool>() ? Ports(stages) : Ports::without_chain(stages);
  for (const py::handle entry : py::list(given["connections"])) {
    const auto pair = py::reinterpret_borrow<py::tuple>(entry);
    const py::tuple from = pair[0];
    ports.connect({StageId(from[0].cast<int32_t>()), from[1].cast<int32_t>()}, input_port(pair[1]));
  }
  for (const py::handle entry : py::list(given["feeds"])) {
    const auto pair = py::reinterpret_borrow<py::tuple>(entry);
    if (py::isinstance<py::str>(pair[0])) {
      ports.feed(pair[0].cast<std::string>(), input_port(pair[1]));
    } else {
      ports.feed(pair[0].cast<int32_t>(), input_port(pair[1]));
    }
  }
  return ports;
}

std::vector<TiedWeight> ties_of(const py::list& given) {
  std::vector<TiedWeight> ties;
  for (const auto& group :
       given.cast<std::vector<std::vector<std::pair<int32_t, std::string>>>>()) {
    TiedWeight& tie = ties.emplace_back();
    for (const auto& [stage, name] : group) tie.push_back({StageId(stage), name});
  }
  return ties;
}

// In C++ the loss is a function of the microbatch's number alone. Python keeps outputs and targets.
Loss loss_of(const py::object& function) {
  if (function.is_none()) return {};
  return [held = hold(function)](const c10::IValue& output, const c10::IValue& target,
                                 const Kwargs&) -> c10::IValue {
    return with_gil([&]() -> c10::IValue {
      const py::object loss = handle_of(held)(to_python(target), to_python(output));
      return to_value(loss);
    });
  };
}

PipelineOptions options_of(const py::dict& given) {
  PipelineOptions options;
  // Steps are not captured as device graphs, because a replay would not call the Python code of a
  // module.
  options.graphs = GraphMode::kOff;
  options.loss = loss_of(get<py::object>(given, "loss", py::none()));
  if (given.contains("ports") && !py::object(given["ports"]).is_none()) {
    options.ports = ports_of(given["ports"]);
  }
  options.ties = ties_of(get<py::list>(given, "ties", py::list()));
  options.timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(get(given, "timeout", 60.0)));
  if (given.contains("seed")) options.seed = given["seed"].cast<std::optional<uint64_t>>();
  options.random = get<std::string>(given, "random", "process") == "process"
                       ? RandomSource::kProcess
                       : RandomSource::kPerMicrobatch;
  if (given.contains("threads_per_rank")) {
    options.threads_per_rank = given["threads_per_rank"].cast<std::optional<int32_t>>();
  }
  options.replicas = get(given, "replicas", 1);
  return options;
}

std::vector<Stage> stages_of(int32_t num_stages, const py::list& calls) {
  std::vector<Stage> stages;
  for (const py::handle entry : calls) {
    const auto pair = py::reinterpret_borrow<py::tuple>(entry);
    stages.push_back(make_stage(pair[0].cast<int32_t>(), num_stages, pair[1]));
  }
  return stages;
}

py::list to_list(const std::vector<at::Tensor>& tensors) {
  py::list list;
  for (const at::Tensor& tensor : tensors) {
    list.append(tensor.defined() ? py::cast(tensor) : py::none());
  }
  return list;
}

}  // namespace

void PyRunner::set_handler(const std::string& type, const py::object& function) {
  const auto found = find_action_type(type);
  require<ArgumentError>(found.has_value(), "there is no action type \"{}\"", type);
  base().callbacks().replace(*found, handler_of(function));
}

py::dict PyRunner::run(bool is_training, const py::list& inputs, const py::dict& given) {
  StepOptions options;
  options.microbatches = given["microbatches"].cast<int32_t>();
  options.outputs = OutputMode::kNone;
  options.measure_memory = get(given, "measure_memory", false);
  options.reduce_grads = get(given, "reduce_grads", true);
  Microbatches batch;
  for (const py::handle entry : inputs) {
    const auto pair = py::reinterpret_borrow<py::tuple>(entry);
    batch.inputs.push_back(to_arguments(pair[0], pair[1]));
  }
  batch.weights = get<std::vector<double>>(given, "weights", {});
  if (get(given, "has_target", false)) {
    for (int64_t m = 0; m < options.microbatches; ++m) batch.targets.emplace_back(m);
  }
  StepResult result;
  {
    const WaitTick tick{WaitWatch(find_transport())};
    const py::gil_scoped_release release;
    result = is_training ? base().step(std::move(batch), options)
                         : base().eval(std::move(batch), options);
    batch = {};
  }
  py::dict answer;
  answer["losses"] = to_list(result.losses);
  answer["added_losses"] = to_list(result.added_losses);
  answer["weights"] = result.weights;
  return answer;
}

void PyRunner::refresh(int32_t stage, const py::object& tensors) {
  const py::tuple both = tensors();
  const auto named = [](py::handle list) {
    NamedTensors result;
    for (const py::handle entry : list) {
      const auto pair = py::reinterpret_borrow<py::tuple>(entry);
      result.emplace_back(pair[0].cast<std::string>(), pair[1].cast<at::Tensor>());
    }
    return result;
  };
  base().stage(StageId(stage)).set_tensors(named(both[0]), named(both[1]));
}

PyReport PyRunner::report() {
  const WaitTick tick{WaitWatch(find_transport())};
  const py::gil_scoped_release release;
  return PyReport(base().recorded_run());
}

py::list PyRunner::memory_estimate(int32_t microbatches) {
  MemoryEstimate estimate;
  {
    const py::gil_scoped_release release;
    estimate = base().peak_memory_estimate(microbatches);
  }
  py::list ranks;
  for (const RankMemory& rank : estimate.ranks) {
    py::dict entry;
    entry["parameters"] = rank.parameters;
    entry["gradients"] = rank.gradients;
    entry["activations"] = rank.activations;
    entry["at"] = rank.at;
    ranks.append(entry);
  }
  return ranks;
}

PyReport::PyReport(RecordedRun run) : run_(std::move(run)), report_(make_report(run_.recording)) {}

py::dict PyReport::fields() const {
  py::dict result;
  result["makespan"] = report_.makespan;
  result["bubble"] = report_.bubble_share;
  result["actions"] = report_.actions;
  result["not_run"] = report_.not_run;
  py::list ranks;
  for (const RankReport& rank : report_.ranks) {
    py::dict entry;
    entry["compute"] = rank.compute;
    entry["bubble"] = rank.bubble;
    entry["exposed_transfer"] = rank.exposed_transfer;
    entry["other"] = rank.other;
    entry["bubble_share"] = rank.bubble_share;
    entry["bytes_sent"] = rank.bytes_sent;
    entry["bytes_received"] = rank.bytes_received;
    entry["peak_memory"] = rank.peak_memory;
    ranks.append(entry);
  }
  result["ranks"] = ranks;
  return result;
}

py::list PyReport::timeline() const {
  py::list result;
  const Recording& recording = run_.recording;
  const std::vector<RankRecording> ranks = in_device_time(recording);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    py::list row;
    const auto list = recording.schedule.actions(Rank(static_cast<int32_t>(r)));
    const auto& times = ranks[r].actions;
    for (std::size_t i = 0; i < list.size() && i < times.size(); ++i) {
      if (list[i].is_idle() || list[i].is_overlap() || times[i].end < 0) continue;
      row.append(py::make_tuple(to_string(list[i]), static_cast<double>(times[i].begin) / 1000,
                                static_cast<double>(times[i].end) / 1000));
    }
    result.append(row);
  }
  return result;
}

void PyReport::save(const std::string& path, const std::string& title) const {
  save_report(path, make_run_report(run_, {.title = title}));
}

namespace {

PipelineOptions options_with(const py::dict& source, const py::dict& given) {
  PipelineOptions options = options_of(given);
  options.source = source_of(source);
  return options;
}

// One rank of a world.
class RankRunner final : public PyRunner {
 public:
  RankRunner(std::shared_ptr<PyWorld> world, const py::dict& source, int32_t num_stages,
             const py::list& calls, const py::dict& options)
      : world_(std::move(world)),
        runner_(world_->transport(), stages_of(num_stages, calls), options_with(source, options)) {}
  PipelineBase& base() override { return runner_; }
  const Transport* find_transport() const override { return &world_->transport(); }
  void recover() {
    const WaitTick tick{WaitWatch(find_transport())};
    const py::gil_scoped_release release;
    runner_.recover();
  }

 private:
  std::shared_ptr<PyWorld> world_;
  Runner runner_;
};

// All ranks, as threads.
class ThreadRunner final : public PyRunner {
 public:
  ThreadRunner(const py::dict& source, int32_t num_stages, const py::list& calls,
               const py::dict& options)
      : pipeline_(make(source, num_stages, calls, options)) {}
  PipelineBase& base() override { return pipeline_; }

 private:
  static Pipeline make(const py::dict& source, int32_t num_stages, const py::list& calls,
                       const py::dict& given) {
    PipelineOptions options = options_with(source, given);
    std::vector<Stage> stages = stages_of(num_stages, calls);
    const py::gil_scoped_release release;
    return Pipeline(std::move(stages), std::move(options));
  }

  Pipeline pipeline_;
};

}  // namespace

void bind_runner(py::module_& module) {
  py::class_<PyReport>(module, "Report", "The use of time in a step.")
      .def("fields", &PyReport::fields)
      .def("timeline", &PyReport::timeline)
      .def("text", &PyReport::text)
      .def_property_readonly("schedule_name", &PyReport::schedule_name)
      .def("save", &PyReport::save, py::call_guard<py::gil_scoped_release>());
  py::class_<PyRunner>(module, "Runner", py::release_gil_before_calling_cpp_dtor(),
                       "Runs the steps of a pipeline.")
      .def("run", &PyRunner::run)
      .def("set_handler", &PyRunner::set_handler)
      .def("refresh", &PyRunner::refresh)
      .def("report", &PyRunner::report)
      .def("memory_estimate", &PyRunner::memory_estimate)
      .def("set_recompute",
           [](PyRunner& self, int32_t stage, bool recompute) {
             self.base().stage(StageId(stage)).set_recompute(recompute);
           })
      .def_property(
          "completed_steps", [](PyRunner& self) { return self.base().completed_steps(); },
          [](PyRunner& self, uint64_t n) { self.base().set_completed_steps(n); });
  py::class_<RankRunner, PyRunner>(module, "RankRunner", py::release_gil_before_calling_cpp_dtor())
      .def(py::init<std::shared_ptr<PyWorld>, const py::dict&, int32_t, const py::list&,
                    const py::dict&>())
      .def("recover", &RankRunner::recover);
  py::class_<ThreadRunner, PyRunner>(module, "ThreadRunner",
                                     py::release_gil_before_calling_cpp_dtor())
      .def(py::init<const py::dict&, int32_t, const py::list&, const py::dict&>());
}

}  // namespace stagecraft::python
