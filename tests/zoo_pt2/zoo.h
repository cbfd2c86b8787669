#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/graph/graph.h"
#include "stagecraft/tree/arguments.h"
#include "tests/support/case_file.h"

namespace stagecraft {

/// What export_zoo.py has written: archives, and what Python's eager model makes of inputs.
struct ZooEntry {
  std::string name;
  std::string kind;                 ///< "model", "feature" or "refused"
  std::string names;                ///< what the refusal has to name
  std::optional<std::size_t> loss;  ///< which leaf of the output is a loss
  bool has_static = false;
};

/// Those that the environment variable SC_ZOO_ONLY names, separated by commas; without it all.
std::vector<ZooEntry> read_zoo();

std::string zoo_path(const std::string& file);

/// The arguments of a case; tensors are copies.
Arguments arguments_of(const oracle::Case& one);

/// Everything that a run leaves behind, against what the case says: outputs, gradients of
/// parameters and inputs, buffers. The first difference, bit for bit, or nothing. The graph is used
/// up: its buffers may have changed, its parameters have gradients.
std::string compare_with_case(const Graph& graph, const oracle::Case& one);
/// The same for something else that runs the model and shares the graph's tensors.
std::string compare_with_case(const Graph& graph, const oracle::Case& one,
                              const std::function<c10::IValue(const Arguments&)>& run);

/// Every two values that share memory when the graph runs must have a common number. The first two
/// that have not, or nothing.
std::string check_shared_memory(const Graph& graph, const Arguments& arguments);

}  // namespace stagecraft
