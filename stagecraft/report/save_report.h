#pragma once

#include <string>
#include <vector>

#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/runtime/recorded_run.h"
#include "stagecraft/viz/run_report.h"

namespace stagecraft {

/// The content of a report in addition to the recording of a step.
struct ReportOptions {
  std::string title = {};    ///< by default the name of the schedule
  std::string command = {};  ///< the command that produced the run
  std::vector<LossPoint> losses = {};
  std::vector<LossPoint> evaluations = {};
  std::vector<ReportFact> facts = {};         ///< listed after the versions
  std::vector<ReportFact> figures = {};       ///< key numbers: {"tokens/s", "12,300"}
  std::vector<std::string> stage_names = {};  ///< by stage
  std::string failure = {};                   ///< the error of a failed step
  bool compare = true;                        ///< with estimates for other schedules
};

/// A report of the pipeline's last step, also of a failed step or an eval. It contains memory if a
/// step had StepOptions::measure_memory. ArgumentError before the first step.
RunReport make_run_report(const Pipeline& pipeline, const ReportOptions& options = {});
/// A report of any step, such as Runner::recorded_run returns on every rank. ArgumentError unless
/// `stages`, and `memory` if it is not empty, have one entry for each stage.
RunReport make_run_report(const RecordedRun& run, const ReportOptions& options = {});

/// Writes a report. The ending of the path selects the format:
///
///   save_report("run.html", pipeline, {.command = command, .losses = losses});
///   save_report("run.json", pipeline);        // the same numbers
///   save_report("run.trace.json", pipeline);  // all ranks on one clock, for ui.perfetto.dev
///
/// The file is written completely or not at all. ArgumentError for a different ending, or as
/// make_run_report throws; Error, with path and cause, if the file cannot be written.
void save_report(const std::string& path, const Pipeline& pipeline,
                 const ReportOptions& options = {});
void save_report(const std::string& path, const RunReport& report);

}  // namespace stagecraft
