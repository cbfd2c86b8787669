#include "stagecraft/report/save_report.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <torch/version.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/version.h"
#include "stagecraft/base/write_file.h"
#include "stagecraft/report/measured_comparison.h"
#include "stagecraft/runtime/memory_estimate.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/runtime/record/stage_times.h"
#include "stagecraft/viz/trace.h"

namespace stagecraft {
namespace {

ActionTimeSummary summary_of(std::vector<double> times) {
  if (times.empty()) return {};
  std::sort(times.begin(), times.end());
  const std::size_t n = times.size();
  return {.count = static_cast<int64_t>(n),
          .mean = std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(n),
          .median = (times[(n - 1) / 2] + times[n / 2]) / 2,
          .least = times.front(),
          .most = times.back()};
}

double mebibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1024.0 * 1024.0);
}

bool has_backward(const Schedule& schedule) {
  return std::any_of(schedule.lists().begin(), schedule.lists().end(), [](const ActionList& list) {
    return std::any_of(list.begin(), list.end(),
                       [](Action action) { return makes_input_gradients(action.type()); });
  });
}

void add_times(RunReport& report, const Recording& recording) {
  const StepReport step = make_report(recording);
  report.not_run = step.not_run;
  for (const RankReport& rank : step.ranks) {
    report.ranks.push_back({.compute = rank.compute,
                            .start_up = rank.start_up,
                            .waiting_for_activations = rank.waiting_for_activations,
                            .waiting_for_gradients = rank.waiting_for_gradients,
                            .run_out = rank.run_out,
                            .exposed_activations = rank.exposed_transfer - rank.exposed_gradients,
                            .exposed_gradients = rank.exposed_gradients,
                            .waiting_for_weights = rank.waiting_for_weights,
                            .other = rank.other,
                            .bytes_sent = rank.bytes_sent,
                            .bytes_received = rank.bytes_received});
    ReportedRank& added = report.ranks.back();
    added.is_device_time = rank.is_device_time;
    added.is_replayed = rank.is_replayed;
    if (rank.host) added.host = {rank.host->compute, rank.host->late, rank.host->launch_bound};
    if (rank.device_memory) {
      added.device_memory = {rank.device_memory->peak_allocated, rank.device_memory->reserved};
    }
  }
}

void add_stages(RunReport& report, const RecordedRun& run, const ReportOptions& options) {
  const std::vector<StageTimes> times = stage_times(run.recording);
  for (std::size_t s = 0; s < times.size(); ++s) {
    const StageState& state = run.stages[s];
    const Rank rank = report.schedule.placement().get_rank(StageId(static_cast<int32_t>(s)));
    report.stages.push_back({.rank = rank.value(),
                             .name = s < options.stage_names.size() ? options.stage_names[s] : "",
                             .parameters = state.parameters,
                             .parameter_bytes = state.parameter_bytes,
                             .forward = summary_of(times[s].forward),
                             .backward_input = summary_of(times[s].backward_input),
                             .backward_weight = summary_of(times[s].backward_weight),
                             .backward = summary_of(times[s].backward),
                             .activations_sent = times[s].activations_sent,
                             .gradients_sent = times[s].gradients_sent});
    ReportedRank& owner = report.ranks[rank.position()];
    owner.parameters += state.parameter_bytes;
    owner.gradients += state.gradient_bytes;
  }
}

void add_plan(RunReport& report, const Recording& recording) {
  report.plan = simulate(recording.schedule, measured_costs(recording), recording.graph);
  report.plan_note =
      "The plan under each lane: actions take the recorded time, and transfers take no time.";
  // The simulator counts activations. add_memory sets bytes instead.
  report.plan->memory.assign(report.plan->ranks.size(), {});
  report.plan->peak_memory = 0;
  for (RankStats& rank : report.plan->ranks) rank.peak_memory = 0;
}

void add_memory(RunReport& report, const RecordedRun& run) {
  for (std::size_t r = 0; r < report.ranks.size(); ++r) {
    if (!report.run.memory[r].empty()) {
      report.ranks[r].recorded_peak = report.run.ranks[r].peak_memory;
    }
  }
  if (run.memory.empty() || !has_backward(report.schedule)) return;
  const MemoryEstimate estimate = estimate_memory(report.schedule, run.memory);
  report.plan->memory =
      estimate_memory_over_time(report.schedule, report.plan->timeline, run.memory);
  for (std::size_t r = 0; r < report.ranks.size(); ++r) {
    const auto peak = static_cast<double>(estimate.ranks[r].total());
    report.ranks[r].predicted_peak = peak;
    report.ranks[r].predicted_at = estimate.ranks[r].at;
    report.plan->ranks[r].peak_memory = peak;
  }
  report.plan->peak_memory = static_cast<double>(estimate.peak());
  report.memory_note =
      "The prediction executes the schedule with the memory that one microbatch of each stage kept "
      "and freed in the last step that measured memory; gradients count from the start.";
}

std::vector<ReportFact> report_facts(const RecordedRun& run, const ReportOptions& options) {
  std::vector<ReportFact> facts = {{"Stagecraft", std::string(version())},
                                   {"torch", TORCH_VERSION}};
  std::string devices;
  for (const StageState& stage : run.stages) {
    if (stage.device.empty() || devices.find(stage.device) != std::string::npos) continue;
    devices += (devices.empty() ? "" : ", ") + stage.device;
  }
  if (!devices.empty()) facts.push_back({"devices", devices});
  if (const LaunchCounts& launches = run.launches; launches.replayed > 0) {
    facts.push_back({"steps", fmt::format("{} run, {} replayed as one launch", launches.run,
                                          launches.replayed)});
    if (launches.peak_run > 0 && launches.peak_replayed > 0) {
      facts.push_back(
          {"peak memory of a device",
           fmt::format("{:.1f} MiB in a step that is run, {:.1f} MiB in one that is "
                       "replayed",
                       mebibytes(launches.peak_run), mebibytes(launches.peak_replayed))});
    }
  }
  facts.insert(facts.end(), options.facts.begin(), options.facts.end());
  return facts;
}

}  // namespace

RunReport make_run_report(const RecordedRun& run, const ReportOptions& options) {
  const auto stages = static_cast<std::size_t>(run.recording.schedule.num_stages());
  require<ArgumentError>(run.stages.size() == stages,
                         "expected the parameters of {} stages, got those of {}", stages,
                         run.stages.size());
  require<ArgumentError>(run.memory.empty() || run.memory.size() == stages,
                         "expected the memory of {} stages, got that of {}", stages,
                         run.memory.size());
  RunReport report{.title = options.title.empty() ? run.schedule_name : options.title,
                   .command = options.command,
                   .facts = report_facts(run, options),
                   .figures = options.figures,
                   .failure = options.failure,
                   .schedule_name = run.schedule_name,
                   .schedule = run.recording.schedule,
                   .graph = run.recording.graph,
                   .run = to_simulation(run.recording),
                   .losses = options.losses,
                   .evaluations = options.evaluations};
  add_times(report, run.recording);
  add_stages(report, run, options);
  add_plan(report, run.recording);
  add_memory(report, run);
  const int32_t ranks = report.schedule.num_ranks();
  const int32_t all = report.schedule.num_stages();
  report.stages_per_rank = all % ranks == 0 ? all / ranks : 0;
  if (options.compare) {
    MeasuredComparison measured = compare_measured(run.recording, run.schedule_name, run.memory);
    report.comparison = std::move(measured.comparison);
    report.assumptions = std::move(measured.assumptions);
  }
  return report;
}

RunReport make_run_report(const Pipeline& pipeline, const ReportOptions& options) {
  return make_run_report(pipeline.recorded_run(), options);
}

void save_report(const std::string& path, const RunReport& report) {
  const std::string_view name = path;
  if (name.ends_with(".trace.json")) {
    write_file(path, draw_trace(report.schedule, report.run, report.graph, report.title,
                                report.plan ? &*report.plan : nullptr));
  } else if (name.ends_with(".json")) {
    write_file(path, report_json(report));
  } else {
    require<ArgumentError>(
        name.ends_with(".html") || name.ends_with(".htm"),
        "expected a report path that ends with .html, .json or .trace.json, got \"{}\"", path);
    write_file(path, draw_report(report));
  }
}

void save_report(const std::string& path, const Pipeline& pipeline, const ReportOptions& options) {
  save_report(path, make_run_report(pipeline, options));
}

}  // namespace stagecraft
