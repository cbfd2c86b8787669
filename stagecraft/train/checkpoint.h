#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/tree/stage_body.h"

namespace stagecraft {

/// The content of a checkpoint: tensors by stage, and the data that the program needs to continue.
struct Checkpoint {
  int64_t step = 0;
  /// The random state: random numbers depend on the seed and on the number of pipeline steps.
  uint64_t seed = 0;
  uint64_t pipeline_steps = 0;
  /// The program's own data as JSON: position in the training data, sizes of the model, ...
  std::string notes = "null";
  /// By stage, in sections: {"model": {"blocks.0.qkv.weight": ...}, ...}. Names are those of the
  /// unsplit model, so the loading program may have a different number of stages.
  std::vector<std::map<std::string, NamedTensors>> stages = {};
  /// A different rank of the world has the tensors and saves them: save_checkpoint writes nothing.
  bool is_elsewhere = false;

  /// One rank's part of a checkpoint that several ranks write: its pieces of tensors. `stages` has
  /// one entry, with the pieces in one dimension, in the order of memory, and with whole tensors.
  struct Part {
    /// Where a piece belongs: its first element, and the layout of the whole tensor.
    struct Piece {
      int64_t begin = 0;
      std::vector<int64_t> sizes = {};
      std::vector<int64_t> strides = {};
    };
    int32_t number = 0;  ///< of this rank; rank 0 completes the checkpoint
    int32_t count = 1;
    uint64_t run = 0;  ///< the same on all ranks, and different in a different run
    std::map<std::string, std::map<std::string, Piece>> pieces = {};  ///< by section and name
  };
  std::optional<Part> part = std::nullopt;
};

/// Writes FOLDER/step-00000200 with a file for each stage and an index with their checksums, and
/// returns its path. The checkpoint gets that name when all of it is on the disk, so a process that
/// is killed at any moment leaves the earlier checkpoints intact. A checkpoint of the same step is
/// replaced.
///
/// A stage's file is in torch's own format; torch::pickle_load and Python's torch.load read it.
/// Afterwards all but the newest `keep` checkpoints are removed (0: none is). Processes that write
/// into the same folder wait for each other.
///
/// If the checkpoint has parts, every rank writes its own file, at the same time as the others,
/// into a folder that all ranks can access. Rank 0 waits for all parts before the checkpoint gets
/// its name (FileError if a part is missing after ten minutes, or if its rank could not write it).
/// The other ranks do not wait.
///
/// FileError, with path and cause, if a file cannot be written, or if a different process locks the
/// folder for a minute. Then nothing is removed, and no incomplete checkpoint is left.
/// ArgumentError for a step below 0 and for notes that are not valid JSON. With `is_elsewhere`,
/// nothing is written, and the path is the one that the other rank writes.
std::string save_checkpoint(const std::string& folder, const Checkpoint& checkpoint,
                            int32_t keep = 0);

/// The checkpoints of a folder, oldest first. Empty if the folder does not exist.
std::vector<std::string> list_checkpoints(const std::string& folder);

/// The step in the name of a checkpoint. ArgumentError for a path of a different form.
int64_t step_of_checkpoint(const std::string& path);

/// Reads a checkpoint. `path` is a checkpoint, or a folder with checkpoints. In the second case the
/// newest one is read. Tensors are on the CPU. FileError, with the path of the file, if a file is
/// missing, damaged or of a different format.
Checkpoint load_checkpoint(const std::string& path);

}  // namespace stagecraft
