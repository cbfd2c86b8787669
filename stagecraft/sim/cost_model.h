#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// The costs of the actions of one stage, for one microbatch or for all of them. Times are in any
/// one unit (microseconds if a unit is printed), and so is memory.
struct StageCost {
  double forward = 1;          ///< F
  double backward_input = 1;   ///< I (the zero-bubble papers call it B)
  double backward_weight = 1;  ///< W
  /// B, the full backward. Without a value: I + W.
  std::optional<double> backward = std::nullopt;

  /// The memory that F takes for activations, that I frees and that W frees; B frees both. The
  /// default counts activations: one from F until B or W.
  double memory_forward = 1;
  double memory_freed_by_input = 0;
  double memory_freed_by_weight = 1;
  /// The memory of an output or a gradient that is sent, on the sending rank, until it has left or,
  /// if the schedule waits for its send, until that wait.
  double memory_sent = 0;

  double full_backward() const { return backward.value_or(backward_input + backward_weight); }

  friend bool operator==(const StageCost&, const StageCost&) = default;
};

/// The cost of a transfer between two ranks. It arrives `latency` after its last byte has left. The
/// link sends one transfer at a time in each direction.
struct LinkCost {
  double latency = 0;
  /// Bytes per unit of time. Without a value, sending takes no time.
  std::optional<double> bandwidth = std::nullopt;

  friend bool operator==(const LinkCost&, const LinkCost&) = default;
};

/// Costs for a simulation. The default is one unit for each of F, I and W, two for B, transfers
/// free.
///
///   CostModel costs;
///   costs.stage.forward = 18522;
///   costs.link.latency = 601;
struct CostModel {
  StageCost stage;                ///< every stage that `stages` does not have
  std::vector<StageCost> stages;  ///< by stage
  /// The cost of one microbatch on one stage.
  struct PerMicrobatch {
    StageId stage;
    MicrobatchId microbatch;
    StageCost cost;

    friend bool operator==(const PerMicrobatch&, const PerMicrobatch&) = default;
  };
  std::vector<PerMicrobatch> microbatches;  ///< exceptions: one stage and microbatch each

  LinkCost link;  ///< between every two ranks that `links` does not have
  /// The cost of one link, in one direction.
  struct PerLink {
    Rank from;
    Rank to;
    LinkCost cost;

    friend bool operator==(const PerLink&, const PerLink&) = default;
  };
  std::vector<PerLink> links;
  /// Bytes of a stage's output for one consumer, and of the gradient that comes back. The last
  /// entry applies to all later stages; no entry means 0. Has an effect only with a bandwidth.
  std::vector<double> output_bytes;

  /// The memory of the weights, by stage. The last entry applies to all later stages; no entry
  /// means 0.
  std::vector<double> weights;
  /// The cost of UNSHARD, by stage in the same way. `gather` is the time until the stage's weights
  /// are there: a rank gathers one stage after the other, at the same time as it computes.
  /// `gathered` is the memory of the weights, until RESHARD.
  std::vector<double> gather;
  std::vector<double> gathered;
  /// The most memory that a rank may hold at a time, weights included.
  std::optional<double> memory_cap = std::nullopt;

  /// How much the parts of an overlap run at the same time: a part starts when the share 1 -
  /// overlap of the parts before it has passed. 0: one after the other, 1: all at once.
  double overlap = 0;
  /// A transfer waits until its receive is posted; otherwise it starts when it is sent. Has an
  /// effect on lowered schedules only.
  bool rendezvous = false;

  friend bool operator==(const CostModel&, const CostModel&) = default;
};

/// ArgumentError, which names the entry, for a negative, infinite or undefined number, an overlap
/// outside [0, 1], or an entry for a stage, microbatch or rank that does not exist.
void check_costs(const CostModel& costs, int32_t ranks, int32_t stages, int32_t microbatches);

/// Reads "F=18522,B=18086,W=9337,C=601". Keys: F, I (or B, as the papers name it), W, FULL (the
/// whole backward), C (latency), BW (bandwidth), BYTES, MF, MI (or MB), MW (memory of F, freed by
/// I, by W), MS (of a sent value), WEIGHTS, G and MG (time and memory of UNSHARD), CAP, OVERLAP.
/// ParseError, with the column, for anything else or a key that occurs twice.
CostModel parse_costs(std::string_view text);

/// Reads a cost file: JSON with the members of CostModel under the keys of parse_costs. See
/// docs/schedules.md. ParseError, with line and column, for text that is not JSON; ArgumentError,
/// which names the entry, for JSON that is not a cost file.
CostModel parse_cost_file(std::string_view json);

}  // namespace stagecraft
