#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/plan/plan_sharding.h"
#include "stagecraft/sim/cost_model.h"

namespace stagecraft {

/// A layer: the smallest part of a model that can be a stage. Costs are those of one microbatch on
/// a rank of speed 1.
struct PlanLayer {
  std::string name = {};
  /// F, I, W, the full backward, and the memory that F takes, I and W free. An I that takes memory
  /// frees a negative amount.
  StageCost cost = {};
  /// Time to run F again for a recompute. Without a value: the time of F.
  std::optional<double> recompute = std::nullopt;
  double output_bytes = 0;  ///< of the values that the next layer reads, and of their gradients
  double weights = 0;       ///< memory of parameters and their gradients
  double state = 0;         ///< memory of the optimizer's state
  /// The part of `weights` that is gradients. Sharding them needs it.
  std::optional<double> gradients = std::nullopt;
  /// Time to gather the weights from all replicas (UNSHARD). Sharding parameters needs it.
  std::optional<double> gather = std::nullopt;
  /// Memory that F, I (or B) and W need in addition while they run.
  double peak_forward = 0;
  double peak_input = 0;
  double peak_weight = 0;

  double fixed_memory() const { return weights + state; }

  friend bool operator==(const PlanLayer&, const PlanLayer&) = default;
};

/// A rank, as the planner sees it.
struct PlanRank {
  std::optional<double> memory = std::nullopt;  ///< weights included; nothing: unlimited
  double speed = 1;                             ///< times are divided by it

  friend bool operator==(const PlanRank&, const PlanRank&) = default;
};

/// How numbers of a problem are printed. The planner does not use them.
struct PlanUnits {
  std::string time = {};  ///< "ms"; empty: numbers without a unit
  bool bytes = false;     ///< memory is in bytes

  friend bool operator==(const PlanUnits&, const PlanUnits&) = default;
};

/// A model, the ranks that are to train it, and the microbatches of a step.
///
///   PlanProblem problem;
///   problem.layers = {...};
///   problem.ranks = same_ranks(8, 6500);
///   problem.microbatches = 64;
struct PlanProblem {
  std::vector<PlanLayer> layers = {};
  std::vector<PlanRank> ranks = {};
  LinkCost link = {};
  std::vector<CostModel::PerLink> links = {};  ///< exceptions for pairs of ranks
  int32_t microbatches = 1;
  /// Time and memory of each microbatch relative to the costs; empty: all 1.
  std::vector<double> sizes = {};
  double input_bytes = 0;  ///< of the input of the first layer, which a recompute keeps
  /// Whether the model's inputs need gradients. If not, the first stage has no I: its whole
  /// backward is W, as in the runtime.
  bool input_gradient = true;
  PlanUnits units = {};
  PlanSharding sharding = {};

  int32_t num_ranks() const { return static_cast<int32_t>(ranks.size()); }
  /// Bytes that a stage beginning with this layer reads.
  double bytes_before(std::size_t layer) const {
    return layer == 0 ? input_bytes : layers[layer - 1].output_bytes;
  }

  friend bool operator==(const PlanProblem&, const PlanProblem&) = default;
};

/// The most layers that a problem can have.
constexpr std::size_t kMostLayers = 512;

/// Ranks that are alike.
std::vector<PlanRank> same_ranks(int32_t ranks, std::optional<double> memory = std::nullopt);

/// ArgumentError, which names the entry, for a problem without layers, ranks or microbatches, more
/// than kMostLayers layers, negative or undefined costs, a speed of 0, sizes that are not one
/// positive number for each microbatch, links of ranks that do not exist, and layers without the
/// numbers that the kind of sharding needs.
void check_problem(const PlanProblem& problem);

/// The contents of a cost file: costs of layers, and other parts of a problem that it has.
struct LayerFile {
  std::vector<PlanLayer> layers = {};
  std::vector<PlanRank> ranks = {};  ///< empty without "ranks"
  LinkCost link = {};
  std::vector<CostModel::PerLink> links = {};
  std::optional<double> memory = std::nullopt;  ///< "CAP": of every rank
  std::vector<double> sizes = {};
  double input_bytes = 0;
  bool input_gradient = true;
  PlanUnits units = {};
};

/// Reads a cost file with "layers" (docs/planning.md). ParseError, with line and column, for text
/// that is not JSON; ArgumentError, which names the entry, for JSON that is not such a file and for
/// a "repeat" that makes more than kMostLayers layers.
LayerFile parse_layer_file(std::string_view json);
/// The inverse: layers that follow each other and are alike are written once, with "repeat".
std::string to_layer_file(const LayerFile& file);

}  // namespace stagecraft
