#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/train/command.h"
#include "stagecraft/train/trainer.h"
#include "stagecraft/viz/run_report.h"

namespace stagecraft::cli {

/// BadUsage if a file cannot be written, as far as this can be checked without writing. Ignores an
/// empty path.
void check_writable(const std::string& file);

/// The reports of a command: page, JSON and trace.
class Reports {
 public:
  /// Without `is_writer`, reports are made but not written.
  Reports(const TrainCommand& command, bool is_writer)
      : command_(&command), is_writer_(is_writer) {}

  bool are_wanted() const;
  /// Calls check_writable for each report.
  void check_places() const;

  void add_step(const TrainStep& step, int64_t tokens);
  /// A line about the run.
  void add_fact(std::string name, std::string value) {
    facts_.push_back({std::move(name), std::move(value)});
  }
  void add_evaluation(int64_t step, double loss) { evaluations_.push_back({step, loss}); }

  /// Writes the reports of the last step. `failure`: the error of a failed step. Called by all
  /// ranks. BadUsage if a report cannot be written.
  void write(Trainer& trainer, const std::string& failure = "") const;

 private:
  const TrainCommand* command_;
  bool is_writer_;
  std::vector<LossPoint> losses_;
  std::vector<LossPoint> evaluations_;
  std::vector<ReportFact> facts_;
  double tokens_per_second_ = 0;
};

}  // namespace stagecraft::cli
