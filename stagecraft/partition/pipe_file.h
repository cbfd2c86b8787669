#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "stagecraft/base/index.h"
#include "stagecraft/graph/archive.h"
#include "stagecraft/partition/pipe.h"

namespace stagecraft {

/// A pipe in a file: its graphs as text, each of its tensors once. A loaded pipe runs and trains
/// like the saved one. Its parameters are new tensors on the CPU. Throws what ArchiveWriter and
/// ArchiveReader throw (archive.h). To save one stage alone, use save_graph(pipe.stage_graph(i),
/// path).
void save_pipe(const Pipe& pipe, const std::string& path);
Pipe load_pipe(const std::string& path);
/// The same for a file that is in memory. Errors have `name` instead of a path.
Pipe load_pipe(const std::string& name, std::span<const std::byte> bytes);

/// One stage of a saved pipe, without reading the tensors of other stages. ArgumentError for a
/// stage that does not exist.
Graph load_stage(const std::string& path, StageId stage);

}  // namespace stagecraft
