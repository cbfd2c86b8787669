#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// Which arguments an operator changes in place, by position: those that its schema says, and the
/// running statistics of normalisations, of which schemas are silent.
std::vector<std::size_t> written_arguments(const c10::FunctionSchema& schema,
                                           const std::vector<Argument>& arguments);

/// Whether an operator draws random numbers.
bool is_random(const c10::OperatorName& op);
/// Whether a node does, in one of its branches or itself: not a dropout that is switched off, nor
/// attention without one.
bool is_random(const GraphNode& node);

/// Throws ArgumentError when two states share memory that a node changes: they cannot be copied one
/// by one.
void check_states_apart(const GraphParts& parts);

/// The states that a node changes, or memory that they share.
std::vector<at::Tensor> changed_states(const GraphParts& parts);

}  // namespace stagecraft
