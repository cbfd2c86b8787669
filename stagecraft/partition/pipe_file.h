#pragma once

#include <string>

#include "stagecraft/base/index.h"
#include "stagecraft/graph/archive.h"
#include "stagecraft/partition/pipe.h"

namespace stagecraft {

/// A pipe in a file: its graphs as text, its tensors once each. What is loaded runs and trains as
/// what was saved; its parameters are new tensors, on the CPU. Throws as ArchiveWriter and
/// ArchiveReader do (archive.h); to save one stage alone, save_graph(pipe.stage_graph(i), path).
void save_pipe(const Pipe& pipe, const std::string& path);
Pipe load_pipe(const std::string& path);

/// One stage of a saved pipe, without reading the tensors of the others. ArgumentError for one that
/// is not there.
Graph load_stage(const std::string& path, StageId stage);

}  // namespace stagecraft
