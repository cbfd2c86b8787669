#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/graph/graph.h"

namespace stagecraft::cli {

/// One leaf of the inputs or outputs of a model.
struct LeafFacts {
  enum class Kind : uint8_t { kTensor, kNumber, kFixed };

  std::string path;  ///< args[0]["mask"]
  Kind kind = Kind::kTensor;
  std::string dtype;               ///< of tensors
  std::vector<std::string> shape;  ///< of tensors, in names of sizes
  std::vector<int64_t> example;    ///< the same in numbers
  std::string value;               ///< of other leaves: a name of a size, or the fixed value
};

/// One size of the shapes.
struct SizeFacts {
  std::string name;
  int64_t example = 0;
  std::optional<int64_t> least;     ///< if the inputs determine the size
  std::optional<int64_t> greatest;  ///< if the inputs determine it and it has a limit
  std::string follows;              ///< the rule of a size that is computed from others
  bool is_visible = true;           ///< an input or output depends on it
};

/// A number of tensors, and their elements and bytes.
struct TensorsFacts {
  int64_t tensors = 0;
  int64_t elements = 0;
  int64_t bytes = 0;
};

/// The inputs, outputs, sizes and tensors of a model.
struct ModelFacts {
  std::vector<LeafFacts> inputs;
  std::vector<LeafFacts> outputs;
  std::vector<SizeFacts> sizes;
  std::vector<std::string> conditions;
  TensorsFacts trained;
  TensorsFacts frozen;
  TensorsFacts buffers;
  TensorsFacts constants;
  std::vector<std::vector<std::string>> tied;  ///< the names of each weight that has several

  TensorsFacts parameters() const {
    return {trained.tensors + frozen.tensors, trained.elements + frozen.elements,
            trained.bytes + frozen.bytes};
  }
};

ModelFacts facts_of(const Graph& graph);

/// `float32[batch, 16]`; sizes that depend on elements read `?7`, with the example's size.
std::string type_text(const Graph& graph, ValueId value);
/// The sizes of the example.
std::vector<int64_t> example_sizes(const Graph& graph);

}  // namespace stagecraft::cli
