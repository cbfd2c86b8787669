#pragma once

#include <string>
#include <vector>

#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/runtime/recorded_run.h"
#include "stagecraft/viz/run_report.h"

namespace stagecraft {

/// What a report says beside what a step's recording tells.
struct ReportOptions {
  std::string title = {};    ///< without it, the schedule's name
  std::string command = {};  ///< that produced the run
  std::vector<LossPoint> losses = {};
  std::vector<LossPoint> evaluations = {};
  std::vector<ReportFact> facts = {};         ///< behind the versions
  std::vector<ReportFact> figures = {};       ///< key numbers: {"tokens/s", "12,300"}
  std::vector<std::string> stage_names = {};  ///< by stage
  std::string failure = {};                   ///< what a step that failed threw
  bool compare = true;                        ///< with what other schedules would have taken
};

/// The pipeline's last step. ArgumentError before the first.
RecordedRun recorded_run_of(const Pipeline& pipeline);

/// A report of the pipeline's last step, a failed one or an eval too. Memory is in it after a step
/// with StepOptions::measure_memory. ArgumentError before the first step.
RunReport make_run_report(const Pipeline& pipeline, const ReportOptions& options = {});
/// A report of any step, such as Runner::gather_run gives on every rank.
/// ArgumentError unless `stages`, and `memory` where there is any, have one entry for each stage.
RunReport make_run_report(const RecordedRun& run, const ReportOptions& options = {});

/// Writes a report; what its name ends with says which:
///
///   save_report("run.html", pipeline, {.command = command, .losses = losses});
///   save_report("run.json", pipeline);        // the same numbers
///   save_report("run.trace.json", pipeline);  // all ranks on one clock, for ui.perfetto.dev
///
/// A file appears whole or not at all. ArgumentError for another ending or as make_run_report;
/// Error, naming path and cause, when the file cannot be written.
void save_report(const std::string& path, const Pipeline& pipeline,
                 const ReportOptions& options = {});
void save_report(const std::string& path, const RunReport& report);

}  // namespace stagecraft
