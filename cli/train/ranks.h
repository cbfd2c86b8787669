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

/// Where a launcher (torchrun, mpirun, srun) has started this program several times and the command
/// does not say how many ranks a pipeline has: as many as there are for each replica. `then`: the
/// options of a run that is taken up. BadUsage for a number that the replicas do not divide.
void take_launched_ranks(TrainCommand& command,
                         const std::map<std::string, std::vector<std::string>>& then);

/// The ranks of a command: threads of one trainer, or ranks of a world with a trainer each, in
/// processes that a launcher has started or, for replicas, in threads.
class Ranks {
 public:
  /// Meets the other processes, if there are any. BadUsage for what the command asks for and nobody
  /// has started; otherwise throws as World does.
  explicit Ranks(const TrainCommand& command);

  /// How many trainers there are in this process.
  int32_t num_here() const;
  /// "4 ranks", "2 x 2 ranks", "2 ranks over gloo".
  std::string describe() const;

  /// "cuda" of a process is one of its machine's devices.
  void choose_device(TrainCommand& command) const;

  /// The exit status of `body`, which is called for each trainer; with null where there is no
  /// world. Throws as World::run does.
  int run(const std::function<int(Transport*)>& body);

 private:
  int32_t ranks_;
  int32_t replicas_;
  std::optional<World> world_;
};

/// The signal that one of the ranks has noted, 0 for none; called by all of them.
int noted_anywhere(int noted_here, Transport* transport, double timeout);

}  // namespace stagecraft::cli
