#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cli/train/command.h"
#include "stagecraft/train/checkpoint_writer.h"

namespace stagecraft::cli {

/// Saves the checkpoints of a run: when one is due, writing beside training, and what is said if
/// one cannot be written. Training continues then, and the last good checkpoint stays.
class Saving {
 public:
  explicit Saving(const TrainCommand& command);

  /// Whether the run has a folder for checkpoints.
  bool is_on() const { return !folder_.empty(); }
  /// Whether a checkpoint is due after this step: by its number, or, with a time between
  /// checkpoints, by the clock of this rank.
  bool is_due(int64_t step) const;

  /// Copies the checkpoint and begins to write it. A write that failed is a line on standard error,
  /// but not if the one before it has failed for the same reason.
  void start(Checkpoint checkpoint);
  /// Waits for the write under way.
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
  int64_t step_ = 0;  // of the write under way
  std::string lost_;  // why the last one was not written; empty: it was
};

/// The newest checkpoint of a folder that can be read; nothing if the folder has none. Damaged ones
/// are named on standard error and passed over. FileError if there are checkpoints and none can be
/// read. `path` is set to that of the checkpoint.
std::optional<Checkpoint> newest_readable(const std::string& folder, std::string& path);

}  // namespace stagecraft::cli
