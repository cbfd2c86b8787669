#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "cli/train/command.h"
#include "stagecraft/train/trainer.h"

namespace stagecraft::cli {

/// Prints the progress of training to standard output: on a terminal one line that is updated in
/// place, otherwise a line every few steps, a line of JSON for each step, or nothing.
class Progress {
 public:
  Progress(const TrainCommand& command, int64_t first_step);

  void step(const TrainStep& step);
  void evaluation(int64_t step, double loss);
  void sample(const std::string& prompt, const std::string& text);
  /// An interrupt ended the training. `saved`: the path of the checkpoint in `folder`, or empty.
  void stopped(int64_t step, const std::string& saved, const std::string& folder);
  /// A line that is not about a step. Not printed in JSON mode.
  void say(const std::string& line);
  /// Ends the line that is updated in place.
  void end();

 private:
  enum class Kind : uint8_t { kQuiet, kJson, kTerminal, kLines };

  void write(const std::string& text);
  void write_over(const std::string& text);
  double seconds_left(const TrainStep& step) const;

  Kind kind_;
  int64_t steps_;
  int64_t first_step_;
  int64_t tokens_a_step_;
  std::string unit_;
  int64_t every_;  // steps between plain lines
  bool is_open_ = false;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = begin_;
  double tokens_per_second_ = 0;
};

/// Bytes of memory of this process.
int64_t resident_bytes();

}  // namespace stagecraft::cli
