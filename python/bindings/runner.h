#pragma once

#include <cstdint>
#include <string>

#include <torch/csrc/utils/pybind.h>

#include "stagecraft/report/save_report.h"
#include "stagecraft/runtime/pipeline_base.h"
#include "stagecraft/runtime/record/device_time.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/runtime/recorded_run.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft::python {

namespace py = pybind11;

/// The recording of a step of all ranks.
class PyReport {
 public:
  explicit PyReport(RecordedRun run);

  py::dict fields() const;
  /// By rank, (action, begin, end) in microseconds.
  py::list timeline() const;
  std::string text() const { return to_text(report_); }
  const std::string& schedule_name() const { return run_.schedule_name; }
  /// Writes .html, .json or .trace.json. Needs no GIL.
  void save(const std::string& path, const std::string& title) const;

 private:
  RecordedRun run_;
  StepReport report_;
};

/// Runs the steps of a pipeline, for Python. Every call releases the GIL while it waits.
class PyRunner {
 public:
  PyRunner() = default;
  virtual ~PyRunner() = default;
  PyRunner(const PyRunner&) = delete;
  PyRunner& operator=(const PyRunner&) = delete;

  virtual PipelineBase& base() = 0;
  /// Null if the ranks are threads.
  virtual const Transport* find_transport() const { return nullptr; }

  /// Runs a step, or an evaluation. `inputs` has (args, kwargs) of each microbatch, or is empty.
  /// The keys of `options` are microbatches, weights, has_target, measure_memory, reduce_grads.
  /// Returns losses, added_losses and weights.
  py::dict run(bool is_training, const py::list& inputs, const py::dict& options);
  void set_handler(const std::string& type, const py::object& function);
  /// Must be called if the tensors of a stage were replaced. `tensors` returns (parameters,
  /// buffers).
  void refresh(int32_t stage, const py::object& tensors);
  PyReport report();
  py::list memory_estimate(int32_t microbatches);
};

}  // namespace stagecraft::python
