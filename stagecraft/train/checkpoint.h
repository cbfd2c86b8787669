#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/tree/stage_body.h"

namespace stagecraft {

/// What a checkpoint holds: tensors by stage, and what the program needs to go on.
struct Checkpoint {
  int64_t step = 0;
  /// The random state: numbers are drawn from the seed and how many steps of the pipeline there
  /// were.
  uint64_t seed = 0;
  uint64_t pipeline_steps = 0;
  /// The program's own, a text in JSON: where it is in its data, sizes of the model, ...
  std::string notes = "null";
  /// By stage, in sections: {"model": {"blocks.0.qkv.weight": ...}, ...}. Names are those of the
  /// uncut model, so it does not matter into how many stages whoever loads it has cut.
  std::vector<std::map<std::string, NamedTensors>> stages = {};
  /// Another rank of a world has the tensors, and saves them: save_checkpoint writes nothing.
  bool is_elsewhere = false;
};

/// Writes FOLDER/step-00000200 with a file for each stage and an index with their checksums, and
/// returns its path. It appears under that name when all of it is on the disk, and not before: who
/// is killed at any moment finds the checkpoints of before. One of the same step is replaced.
///
/// A stage's file is in torch's own format; torch::pickle_load and Python's torch.load read it.
/// Afterwards all but the newest `keep` are removed (0: none is). Processes that write into one
/// folder take turns.
///
/// FileError, with path and cause, when something cannot be written, or another process writes
/// there for a minute; then nothing is removed and no half of a checkpoint is left. ArgumentError
/// for a step below 0 and notes that are no JSON. One that is elsewhere is not written here: the
/// path is that under which the other rank does.
std::string save_checkpoint(const std::string& folder, const Checkpoint& checkpoint,
                            int32_t keep = 0);

/// The checkpoints of a folder, oldest first; none where there is no such folder.
std::vector<std::string> list_checkpoints(const std::string& folder);

/// The step in a checkpoint's name. ArgumentError for another name.
int64_t step_of_checkpoint(const std::string& path);

/// Reads one: `path` is that of a checkpoint, or a folder with some, of which the newest is taken.
/// Tensors come to the CPU. FileError that names the file when one is missing, damaged or of
/// another format.
Checkpoint load_checkpoint(const std::string& path);

}  // namespace stagecraft
