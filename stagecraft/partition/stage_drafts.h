#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "stagecraft/graph/graph.h"
#include "stagecraft/partition/sharing.h"
#include "stagecraft/partition/split_candidates.h"
#include "stagecraft/partition/state_plan.h"
#include "stagecraft/partition/uses.h"

namespace stagecraft {

/// The inputs and outputs of a stage.
struct StageDraft {
  std::set<ValueId> needs;          ///< values that other stages make
  std::set<int32_t> arguments;      ///< positional arguments of the model
  std::set<std::string> keywords;   ///< keyword arguments of the model
  std::map<ValueId, int32_t> from;  ///< the stage that sends each value
  std::set<ValueId> outputs;
  std::set<int> size_outputs;         ///< sizes that are sent to later stages
  std::map<int, int32_t> sizes_from;  ///< the stage that sends each size
};

/// Decides for each stage of a split graph what it takes and from where.
class StageDrafts {
 public:
  StageDrafts(const Graph& graph, const SplitPositions& positions, const Sharing& sharing);

  const Graph& graph() const { return graph_; }
  const ValueUses& uses() const { return uses_; }
  const StatePlan& states() const { return states_; }
  int32_t last() const { return static_cast<int32_t>(drafts_.size()) - 1; }
  /// The stage of a node.
  int32_t stage_of(int32_t node) const { return stage_of_[static_cast<std::size_t>(node)]; }
  const StageDraft& operator[](int32_t stage) const {
    return drafts_[static_cast<std::size_t>(stage)];
  }

  /// Makes stage `from` send a size to stage `to`.
  void send_size(int size, int32_t from, int32_t to);
  /// Gives a stage the argument of the model that input `leaf` belongs to.
  void feed(int32_t stage, std::size_t leaf);

 private:
  /// The argument of the model that a leaf belongs to.
  struct ModelInput {
    std::optional<int32_t> argument;
    std::string keyword;
  };

  StageDraft& at(int32_t stage) { return drafts_[static_cast<std::size_t>(stage)]; }
  void find_inputs();
  void collect_needs();
  void need(int32_t stage, ValueId value);
  int32_t source(ValueId value, int32_t stage) const;
  void resolve(int32_t stage);

  const Graph& graph_;
  ValueUses uses_;
  std::vector<int32_t> stage_of_;
  std::vector<StageDraft> drafts_;
  std::vector<ModelInput> leaf_of_;          // by input
  std::map<ValueId, std::size_t> input_of_;  // the input, by value
  StatePlan states_;
};

/// The graph of a stage, as far as it is decided: not compacted, without guards.
GraphParts draft_graph(const StageDrafts& drafts, int32_t stage);

}  // namespace stagecraft
