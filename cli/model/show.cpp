#include "cli/model/show.h"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/failure.h"
#include "cli/model/json.h"
#include "cli/model/plan.h"
#include "cli/model/program_view.h"
#include "cli/model/text.h"
#include "cli/model/write_pipe.h"
#include "stagecraft/exported/exported_archive.h"
#include "stagecraft/graph/graph_text.h"

namespace stagecraft::cli {

std::string show(const ModelCommand& command) {
  if (command.pipe_out) return write_pipe(command);
  const ExportedArchive archive(command.file);
  std::vector<std::string> programs = archive.programs();
  const bool has_several = command.program.empty() && programs.size() > 1;
  if (!command.program.empty()) programs = {command.program};
  if (has_several && (command.is_text || command.stages || command.split || command.is_planned)) {
    throw BadUsage(fmt::format("{} has several programs: choose one with --program: {}",
                               command.file, fmt::join(programs, ", ")));
  }
  if (command.is_planned) return plan_model(archive.graph(programs.front()), command);
  if (command.is_text) return to_text(archive.graph(programs.front()));
  std::vector<ProgramView> views;
  views.reserve(programs.size());
  for (const std::string& program : programs) views.emplace_back(archive, program, command);
  if (command.is_json) return views_json(command.file, archive.programs(), views);
  if (has_several) return list_text(command.file, views);
  return view_text(command, archive.programs(), views.front());
}

}  // namespace stagecraft::cli
