#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/train/command.h"
#include "stagecraft/transport/transport.h"
#include "stagecraft/transport/world/world.h"

namespace stagecraft::cli {

/// If a launcher (torchrun, mpirun, srun) started several processes and --ranks was not given, sets
/// it to the number of processes for each replica. `then` has the options of a run that is resumed.
/// BadUsage if the replicas do not divide the number of processes.
void take_launched_ranks(TrainCommand& command,
                         const std::map<std::string, std::vector<std::string>>& then);

/// The ranks of a command: threads of one trainer, or ranks of a world with a trainer each. The
/// ranks of a world are processes of a launcher or, for replicas without a launcher, threads.
class Ranks {
 public:
  /// Joins the other processes, if there are any. BadUsage if the launcher started a different
  /// number of processes or a different transport than the command asks for. Otherwise throws as
  /// World does.
  explicit Ranks(const TrainCommand& command);

  /// The number of trainers in this process.
  int32_t num_here() const;
  /// Whether all ranks are threads of this process.
  bool are_threads() const { return !world_ || world_->is_local(); }
  /// "4 ranks", "2 x 2 ranks", "2 ranks over gloo".
  std::string describe() const;

  /// Replaces "cuda" by one of the machine's devices, chosen by the local rank of the process.
  void choose_device(TrainCommand& command) const;

  /// Calls `body` for each trainer, with null if there is no world, and returns its exit status.
  /// Throws as World::run does.
  int run(const std::function<int(Transport*)>& body);

 private:
  int32_t ranks_;
  int32_t replicas_;
  std::optional<World> world_;
};

/// The values that ranks exchange after a step.
struct StepNotes {
  int signal = 0;  ///< the signal that was noted; 0: none
  bool is_save_due = false;
};

/// The notes that hold for all ranks: the signal that any rank has noted, and whether rank 0 says
/// that a checkpoint is due (clocks differ). Called by all ranks.
StepNotes agree_on_notes(const StepNotes& own, Transport* transport, double timeout);

}  // namespace stagecraft::cli
