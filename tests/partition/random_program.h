#pragma once

#include <cstdint>

#include "stagecraft/stage/stage_body.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// A model made of random operators: products with shared parameters, views, changes in place,
/// lists, reductions, regions without gradients, numbers that follow the batch size, random
/// numbers. It takes two tensors of [rows, 8] and returns a tuple of tensors. The seed decides all
/// of it.
StageBody random_program(uint64_t seed);

/// Its arguments.
Arguments random_program_inputs(int64_t rows);

}  // namespace stagecraft
