#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// The positions of the arguments that an operator changes in place: those that its schema
/// declares, and the running statistics of normalisations, which schemas do not declare.
std::vector<std::size_t> written_arguments(const c10::FunctionSchema& schema,
                                           const std::vector<Argument>& arguments);

/// Whether an operator draws random numbers.
bool is_random(const c10::OperatorName& op);
/// Whether a node or one of its branches draws random numbers. A disabled dropout, and attention
/// without dropout, do not.
bool is_random(const GraphNode& node);

/// Throws ArgumentError if two states share memory that a node changes: such states cannot be
/// copied separately.
void check_states_apart(const GraphParts& parts);

/// The states that a node changes, and the states that share memory with them.
std::vector<at::Tensor> changed_states(const GraphParts& parts);

}  // namespace stagecraft
