#include "cli/train/reports.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "cli/failure.h"
#include "stagecraft/base/error.h"
#include "stagecraft/base/write_file.h"
#include "stagecraft/report/save_report.h"
#include "stagecraft/viz/trace.h"

namespace stagecraft::cli {
namespace {

namespace fs = std::filesystem;

/// The modules of a stage, from the first to the last: "embed to blocks.1".
std::string describe_modules(const Graph& stage) {
  const auto module_of = [](const std::string& parameter) {
    const std::size_t dot = parameter.find('.');
    const bool is_numbered = parameter.starts_with("blocks.");
    return parameter.substr(0, is_numbered ? parameter.find('.', dot + 1) : dot);
  };
  std::vector<std::string> parameters;
  for (const GraphState& state : stage.parts().states) {
    if (state.kind == GraphState::Kind::kParameter) {
      parameters.push_back(stage.value(state.value).name);
    }
  }
  if (parameters.empty()) return "";
  const std::string first = module_of(parameters.front());
  const std::string last = module_of(parameters.back());
  return first == last ? first : fmt::format("{} to {}", first, last);
}

std::string describe_model(const TrainCommand& command) {
  if (!command.model_file.empty()) return fs::path(command.model_file).filename().string();
  const GptSizes& model = command.model;
  return fmt::format("{} blocks, width {}, {} heads, context {}", model.layers, model.width,
                     model.heads, model.context);
}

}  // namespace

void check_writable(const std::string& file) {
  if (file.empty()) return;
  std::error_code ignored;
  const bool is_there = fs::exists(file, ignored);
  const fs::path target = is_there ? fs::path(file) : fs::absolute(file).parent_path();
  if (is_there && fs::is_directory(file, ignored)) {
    throw BadUsage(fmt::format("cannot write {}: {}", file, std::strerror(EISDIR)));
  }
  if (::access(target.c_str(), W_OK) != 0) {
    throw BadUsage(fmt::format("cannot write {}: {}", file, std::strerror(errno)));
  }
}

bool Reports::are_wanted() const {
  return !command_->report.empty() || !command_->report_json.empty() || !command_->trace.empty();
}

void Reports::check_places() const {
  if (!is_writer_) return;
  for (const std::string& file : {command_->report, command_->report_json, command_->trace}) {
    check_writable(file);
  }
}

void Reports::add_step(const TrainStep& step, int64_t tokens) {
  losses_.push_back({step.step, step.loss});
  tokens_per_second_ = static_cast<double>(tokens) / std::max(step.seconds, 1e-9);
}

void Reports::write(Trainer& trainer, const std::string& failure) const {
  if (!are_wanted()) return;
  const RecordedRun run = trainer.recorded_run();
  if (!is_writer_) return;
  std::vector<std::string> names;
  for (int32_t s = 0; s < trainer.pipe().num_stages(); ++s) {
    names.push_back(describe_modules(trainer.pipe().stage_graph(StageId(s))));
  }
  const std::string replicas =
      command_->replicas > 1 ? fmt::format("{} x ", command_->replicas) : "";
  ReportOptions options{
      .title = fmt::format("stagecraft train: {} on {}{} ranks", command_->schedule, replicas,
                           trainer.num_ranks()),
      .command = command_->command_line,
      .losses = losses_,
      .evaluations = evaluations_,
      .facts = {{"model", describe_model(*command_)},
                {"batch", fmt::format("{} rows in {} x {}{} microbatches", command_->batch,
                                      command_->accumulate, replicas, command_->microbatches)}},
      .figures = {{command_->unit + "/s", fmt::format("{:.0f}", tokens_per_second_)}},
      .stage_names = std::move(names),
      .failure = failure};
  options.facts.insert(options.facts.end(), facts_.begin(), facts_.end());
  try {
    const RunReport report = make_run_report(run, options);
    if (!command_->report.empty()) write_file(command_->report, draw_report(report));
    if (!command_->report_json.empty()) write_file(command_->report_json, report_json(report));
    if (!command_->trace.empty()) {
      write_file(command_->trace, draw_trace(report.schedule, report.run, report.graph,
                                             report.title, report.plan ? &*report.plan : nullptr));
    }
  } catch (const Error& error) {
    throw BadUsage(error.what());
  }
}

}  // namespace stagecraft::cli
