#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "stagecraft/runtime/step.h"
#include "stagecraft/tree/arguments.h"
#include "tests/support/case_file.h"

namespace stagecraft {

/// A loss that gives the outputs exactly the gradients of a case, which the target lists.
c10::IValue seeded_loss(const c10::IValue& output, const c10::IValue& target, const Kwargs& kwargs);

/// One microbatch for each case, with the targets of `seeded_loss`.
Microbatches microbatches_of(const std::vector<oracle::Case>& cases);

/// Python's gradients by the names of parameters, added in the order of the cases. Undefined for a
/// parameter without one.
std::map<std::string, at::Tensor> summed_grads(const std::vector<oracle::Case>& cases);

}  // namespace stagecraft
