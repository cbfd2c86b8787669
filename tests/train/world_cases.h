#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "stagecraft/transport/transport.h"
#include "tests/train/small_gpt.h"

namespace stagecraft {

/// A training over a world of ranks.
struct WorldCase {
  TrainerSetup setup = {};
  int32_t replicas = 1;
  int32_t ranks() const { return *setup.options.ranks * replicas; }
};

/// The schedules of Trainer's own tests.
WorldCase world_case(int32_t stages, const std::string& schedule, int32_t ranks,
                     int32_t replicas = 1);
std::vector<WorldCase> world_cases();
std::string to_string(const WorldCase& c);

/// The same training on threads: with as many microbatches in all.
PreparedTrainer prepare_threads(const WorldCase& c);

/// The states whose first stage is on this rank, and their values.
std::set<std::string> own_names(const Trainer& trainer, const WorldCase& c,
                                const Transport& transport);
std::map<std::string, at::Tensor> own_values(const Trainer& trainer, const WorldCase& c,
                                             const Transport& transport);

/// What a training of a few updates came to.
struct Trained {
  std::vector<double> curve;                 ///< losses and norms
  std::map<std::string, at::Tensor> values;  ///< of all that the trainer's pipe holds, by name
  double loss = 0;                           ///< of an evaluation
  at::Tensor outputs;
};
Trained train(const WorldCase& c, Trainer trainer);

/// Trains over the world and compares with what it came to on threads: in the same bits with one
/// replica, closely with several; the replicas have the same bits, and all ranks the same results.
void check_world(Transport& transport, const WorldCase& c, Trainer trainer,
                 const Trained& expected);

}  // namespace stagecraft
