#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "stagecraft/train/checkpoint.h"

namespace stagecraft {

/// Writes checkpoints on a thread of its own, while training continues.
///
///   CheckpointWriter writer("run", 2);
///   writer.start(trainer.checkpoint());  // returns when the tensors are copied
///   ... more steps ...
///   writer.finish();                     // the checkpoint is on the disk
///
/// A writer belongs to one thread.
class CheckpointWriter {
 public:
  /// `folder` and `keep` are those of save_checkpoint.
  explicit CheckpointWriter(std::string folder, int32_t keep = 0);
  /// Waits for the checkpoint that is being written.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Copies the tensors into memory of the host and begins to write them. Calls finish() first. If
  /// the previous write has failed, throws its error and starts nothing. With `is_elsewhere`,
  /// nothing is copied or written.
  void start(Checkpoint checkpoint);

  /// Waits until nothing is being written. Throws an exception of save_checkpoint, once.
  void finish();

  /// Whether a checkpoint is being written, or has been since the last call of finish().
  bool is_started() const;

  /// The path of the newest checkpoint that was written completely; empty without one. Changes only
  /// in start() and finish().
  const std::string& newest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stagecraft
