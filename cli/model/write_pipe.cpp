#include "cli/model/write_pipe.h"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/failure.h"
#include "stagecraft/exported/exported_archive.h"
#include "stagecraft/graph/archive.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/partition/pipe_file.h"
#include "stagecraft/partition/split.h"
#include "stagecraft/partition/split_text.h"
#include "stagecraft/plan/plan_file.h"

namespace stagecraft::cli {
namespace {

bool is_own_archive(const std::string& path) {
  try {
    const ArchiveReader reader(path);
    return true;
  } catch (const Error&) {
    return false;
  }
}

Graph read_graph(const ModelCommand& command) {
  if (is_own_archive(command.file)) return load_graph(command.file);
  const ExportedArchive archive(command.file);
  std::vector<std::string> programs = archive.programs();
  if (!command.program.empty()) programs = {command.program};
  if (programs.size() != 1) {
    throw BadUsage(fmt::format("{} has several programs: choose one with --program: {}",
                               command.file, fmt::join(programs, ", ")));
  }
  return archive.graph(programs.front());
}

Split split_of(const ModelCommand& command) {
  Split split;
  if (command.split) return parse_split(*command.split);
  if (command.stages) {
    split.policy = equal_cost(*command.stages);
    return split;
  }
  if (command.plan_file) {
    for (const std::string& name : read_plan_file(*command.plan_file).model.split_points) {
      split.points.emplace_back(name, SplitPoint::kBeginning);
    }
  }
  if (split.points.empty()) split.policy = [](const Graph&) { return SplitPositions(); };
  return split;
}

}  // namespace

std::string write_pipe(const ModelCommand& command) {
  const Pipe pipe(read_graph(command), split_of(command));
  save_pipe(pipe, *command.pipe_out);
  return pipe.table();
}

}  // namespace stagecraft::cli
