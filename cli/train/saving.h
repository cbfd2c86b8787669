#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cli/train/command.h"
#include "stagecraft/train/checkpoint_writer.h"

namespace stagecraft::cli {

/// Saves the checkpoints of a run: decides when one is due, writes it while training continues, and
/// reports if it cannot be written. Training then continues, and the last good checkpoint stays.
class Saving {
 public:
  explicit Saving(const TrainCommand& command);

  /// Whether the run has a folder for checkpoints.
  bool is_on() const { return !folder_.empty(); }
  /// Whether a checkpoint is due after this step: by its number, or, with a time between
  /// checkpoints, by the clock of this rank.
  bool is_due(int64_t step) const;

  /// Copies the checkpoint and begins to write it. If the write before it failed, prints a line on
  /// standard error, unless the one before that failed for the same reason.
  void start(Checkpoint checkpoint);
  /// Waits until the current write ends.
  void finish();

  /// The newest checkpoint that was written completely; empty without one.
  const std::string& newest() const { return writer_.newest(); }
  /// A sentence if the last checkpoint was not written; empty if nothing was lost.
  std::string describe_loss() const;

 private:
  void say_failed(const std::string& cause);

  std::string folder_;
  int64_t every_;
  std::optional<std::chrono::nanoseconds> time_between_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  CheckpointWriter writer_;
  int64_t step_ = 0;  // of the current write
  std::string lost_;  // why the last checkpoint was not written; empty if it was
};

/// The newest checkpoint of a folder that can be read; nothing if the folder has none. Damaged
/// checkpoints are named on standard error and skipped. FileError if there are checkpoints and none
/// can be read. Sets `path` to that of the checkpoint.
std::optional<Checkpoint> newest_readable(const std::string& folder, std::string& path);

}  // namespace stagecraft::cli
