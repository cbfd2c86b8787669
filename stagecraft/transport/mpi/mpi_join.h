#pragma once

#include <memory>

#include "stagecraft/transport/mpi/mpi_world.h"
#include "stagecraft/transport/wire/engine.h"

namespace stagecraft::detail {

struct MpiJoined {
  std::unique_ptr<Engine> engine;
  int32_t local_rank = 0;
};

/// Meets the other ranks: each tells all others which process it is and what it takes for granted
/// (facts); when all have and agree, they make a communicator of their own.
MpiJoined join_mpi(const MpiWorldOptions& options);

}  // namespace stagecraft::detail
