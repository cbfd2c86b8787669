#pragma once

#include <cstdint>

#include "stagecraft/tree/arguments.h"
#include "stagecraft/tree/stage_body.h"

namespace stagecraft {

/// A model made of random operators: products with shared parameters, views, changes in place,
/// lists, reductions, regions without gradients, numbers that follow the batch size, random
/// numbers; some change their arguments in place. It takes two tensors of [rows, 8] and returns a
/// tuple of such. The seed decides all of it.
struct RandomProgramOptions {
  bool has_buffer = true;  ///< some programs change a buffer, and read it
};
StageBody random_program(uint64_t seed, const RandomProgramOptions& options = {});

/// The same, with its tensors side by side in one.
StageBody in_one_tensor(const StageBody& program);

/// Its arguments.
Arguments random_program_inputs(int64_t rows);

}  // namespace stagecraft
