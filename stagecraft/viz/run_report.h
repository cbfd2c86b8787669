#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/sim/compare_schedules.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft {

/// A name with a text: "torch", "2.13.0".
struct ReportFact {
  std::string name;
  std::string value;
};

/// How the time of a rank divides. The times add up to the step's time.
struct ReportedRank {
  double compute = 0;
  /// Bubble, by cause: waiting ahead of the first compute, later for activations and for gradients
  /// that were not sent yet, and the time after the rank's last action.
  double start_up = 0;
  double waiting_for_activations = 0;
  double waiting_for_gradients = 0;
  double run_out = 0;
  /// Waiting for values and gradients that were already sent.
  double exposed_activations = 0;
  double exposed_gradients = 0;
  double waiting_for_weights = 0;  ///< of sharded stages
  double other = 0;                ///< all else: sends, bookkeeping
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;

  int64_t parameters = 0;  ///< bytes, as are gradients
  int64_t gradients = 0;
  /// Bytes at the peak, parameters and gradients included. (Simulation::memory of run and plan is
  /// memory over time.)
  std::optional<double> recorded_peak = std::nullopt;
  std::optional<double> predicted_peak = std::nullopt;
  std::string predicted_at = {};  ///< the action at which the predicted peak is

  /// The host beside the device, for a rank whose times are those of its device.
  struct Host {
    double compute = 0;       ///< the host was in forward and backward, waiting excluded
    double late = 0;          ///< the device had no work between actions, because the host was late
    double launch_bound = 0;  ///< of the compute: launching took as long as computing
  };
  /// Statistics of the device's allocator, in bytes.
  struct DeviceMemory {
    int64_t peak_allocated = 0;
    int64_t reserved = 0;
  };
  bool is_device_time = false;              ///< the times are those of the rank's device
  bool is_replayed = false;                 ///< the step was one launch
  std::optional<Host> host = std::nullopt;  ///< nothing for a step that was one launch
  std::optional<DeviceMemory> device_memory = std::nullopt;

  double bubble() const {
    return start_up + waiting_for_activations + waiting_for_gradients + run_out;
  }
  double exposed_transfer() const { return exposed_activations + exposed_gradients; }
};

/// The times of actions of one type, waiting excluded, over the microbatches that ran.
struct ActionTimeSummary {
  int64_t count = 0;
  double mean = 0;
  double median = 0;
  double least = 0;
  double most = 0;
};

/// The data of a stage in a report.
struct ReportedStage {
  int32_t rank = 0;
  std::string name = {};
  int64_t parameters = 0;  ///< number of elements
  int64_t parameter_bytes = 0;
  ActionTimeSummary forward = {};
  ActionTimeSummary backward_input = {};
  ActionTimeSummary backward_weight = {};
  ActionTimeSummary backward = {};
  int64_t activations_sent = 0;  ///< bytes
  int64_t gradients_sent = 0;
};

/// A point of a loss curve.
struct LossPoint {
  int64_t step = 0;
  double loss = 0;
};

/// All data of a page about a run, most of it about one step. Times are microseconds, memory is
/// bytes. `make_run_report` (report/save_report.h) fills it in from a pipeline.
struct RunReport {
  std::string title;
  std::string command = {};              ///< that produced it
  std::vector<ReportFact> facts = {};    ///< versions, machine, settings
  std::vector<ReportFact> figures = {};  ///< key numbers of the run, beside those of the step
  std::string failure = {};              ///< why the step ended early

  std::string schedule_name;
  Schedule schedule;
  StageGraph graph;
  Simulation run;  ///< as it ran
  std::optional<Simulation> plan = std::nullopt;
  std::string plan_note = {};    ///< how the plan was made
  std::string memory_note = {};  ///< the same for the prediction of memory
  int64_t not_run = 0;           ///< actions

  std::vector<ReportedRank> ranks = {};
  std::vector<ReportedStage> stages = {};
  std::vector<LossPoint> losses = {};
  std::vector<LossPoint> evaluations = {};

  ScheduleComparison comparison = {};
  int32_t stages_per_rank = 0;  ///< of this run, to find it in the comparison; 0: uneven
  std::vector<std::string> assumptions = {};  ///< of the comparison, a sentence each

  /// Shares of all ranks' time, 0 without ranks or time.
  double share(double (*part)(const ReportedRank&)) const;
};

/// A page for a browser, complete in one file that loads nothing: the timeline with zoom and the
/// plan underneath, time by rank and cause, memory by rank against the prediction, losses, stages,
/// other schedules, the command.
///
/// ArgumentError unless run and plan are of the schedule and `ranks` has one entry for each rank.
std::string draw_report(const RunReport& report);

/// The same numbers as JSON; numbers that are not finite are null. See docs/reports.md.
/// ArgumentError as from draw_report.
std::string report_json(const RunReport& report);

}  // namespace stagecraft
