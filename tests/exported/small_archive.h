#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "stagecraft/graph/graph.h"
#include "stagecraft/tree/arguments.h"
#include "tests/exported/zip_writer.h"

namespace stagecraft {

// Pieces of a program as torch.export writes them.

nlohmann::json tensor_name(const std::string& name);
/// The symbol alone: `Symbol('s0', ...)`.
nlohmann::json symbol(const std::string& name, int64_t hint);
nlohmann::json expression(const std::string& text, int64_t hint);
/// `sizes`: numbers, or what symbol() and expression() give. Contiguous strides where all are
/// numbers, otherwise 1.
nlohmann::json tensor_meta(const std::vector<nlohmann::json>& sizes, bool requires_grad = false);
/// "torch.ops.aten.add.Tensor", arguments by name, names of the results.
nlohmann::json node(const std::string& target,
                    const std::vector<std::pair<std::string, nlohmann::json>>& inputs,
                    const std::vector<nlohmann::json>& outputs);
nlohmann::json leaf_tree();
nlohmann::json tuple_tree(const std::vector<nlohmann::json>& children);
nlohmann::json dict_tree(const std::vector<std::string>& keys,
                         const std::vector<nlohmann::json>& children);

/// An archive of torch.export in the making, which tests change before they write it.
struct SmallArchive {
  nlohmann::json model;                      ///< models/model.json
  nlohmann::json weights;                    ///< data/weights/model_weights_config.json
  std::map<std::string, std::string> files;  ///< all others, by name

  /// relu(x @ w + b) + x for x of [s0, 4], s0 of 2 or more.
  static SmallArchive linear();
  /// With a cond, a region without gradients, a buffer that counts, tied weights, lists of tensors,
  /// sizes that follow from others, guards.
  static SmallArchive rich();

  nlohmann::json& graph() { return model["graph_module"]["graph"]; }
  nlohmann::json& nodes() { return graph()["nodes"]; }
  nlohmann::json& tensors() { return graph()["tensor_values"]; }
  nlohmann::json& signature() { return model["graph_module"]["signature"]; }
  void set_in_tree(const nlohmann::json& args, const nlohmann::json& kwargs);
  void set_out_tree(const nlohmann::json& tree);
  /// A parameter of its own piece of the file, all ones.
  void add_parameter(const std::string& name, const std::vector<int64_t>& sizes);
  void add_input(const std::string& name, const nlohmann::json& meta);
  /// A node with one result.
  void add_node(const std::string& target,
                const std::vector<std::pair<std::string, nlohmann::json>>& inputs,
                const std::string& name, const nlohmann::json& meta);
  void add_output(const std::string& name);
  void set_example(const Arguments& arguments);

  std::vector<ZipMember> members() const;
  std::string bytes() const { return zip_bytes(members()); }
};

/// Writes it, and reads the graph.
Graph load(const SmallArchive& archive);

}  // namespace stagecraft
