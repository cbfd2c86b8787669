#pragma once

#include <string>
#include <vector>

#include "cli/train/command.h"
#include "stagecraft/train/trainer.h"
#include "stagecraft/viz/run_report.h"

namespace stagecraft::cli {

/// BadUsage for a file that cannot be written, as far as that can be known before it is. One
/// without a name is none.
void check_writable(const std::string& file);

/// The page, the JSON and the trace that a command asks for.
class Reports {
 public:
  /// Without `is_writer` all is done but writing.
  Reports(const TrainCommand& command, bool is_writer)
      : command_(&command), is_writer_(is_writer) {}

  bool are_wanted() const;
  /// As check_writable, for each.
  void check_places() const;

  void add_step(const TrainStep& step, int64_t tokens);
  void add_evaluation(int64_t step, double loss) { evaluations_.push_back({step, loss}); }

  /// Of the last step that was run; `failure`: what it threw. Called by all ranks. BadUsage when
  /// one cannot be written.
  void write(Trainer& trainer, const std::string& failure = "") const;

 private:
  const TrainCommand* command_;
  bool is_writer_;
  std::vector<LossPoint> losses_;
  std::vector<LossPoint> evaluations_;
  double tokens_per_second_ = 0;
};

}  // namespace stagecraft::cli
