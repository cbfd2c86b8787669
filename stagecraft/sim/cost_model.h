#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// What the actions of one stage cost, for one microbatch or for all of them. Times are in any one
/// unit (microseconds where a unit is printed), memory too.
struct StageCost {
  double forward = 1;          ///< F
  double backward_input = 1;   ///< I (the zero-bubble papers call it B)
  double backward_weight = 1;  ///< W
  /// B, the full backward. Without it: I + W.
  std::optional<double> backward = std::nullopt;

  /// What F takes for activations, what I gives back and what W gives back; B gives back both. The
  /// default counts activations: one from F until B or W.
  double memory_forward = 1;
  double memory_freed_by_input = 0;
  double memory_freed_by_weight = 1;
  /// What an output or a gradient that is sent takes on the sending rank, until it has left or,
  /// where the schedule waits for its send, until that wait.
  double memory_sent = 0;

  double full_backward() const { return backward.value_or(backward_input + backward_weight); }

  friend bool operator==(const StageCost&, const StageCost&) = default;
};

/// What a transfer between two ranks costs: it arrives `latency` after its last byte left, and the
/// link sends one transfer of that direction at a time.
struct LinkCost {
  double latency = 0;
  /// Bytes per unit of time; without it, sending takes no time.
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
  /// Bytes of a stage's output for one consumer, and of the gradient that comes back; the last
  /// entry serves all later stages, none means 0. Only matters with a bandwidth.
  std::vector<double> output_bytes;

  /// By stage; the last entry serves all later ones, none means 0.
  std::vector<double> weights;
  /// What UNSHARD takes, by stage in the same way: the time until the stage's weights are there,
  /// one gather of a rank after the other, beside compute; and their memory, until RESHARD.
  std::vector<double> gather;
  std::vector<double> gathered;
  /// What a rank may hold at a time, weights included.
  std::optional<double> memory_cap = std::nullopt;

  /// How much of an overlap's parts run side by side: a part starts when the share 1 - overlap of
  /// the parts before it has passed. 0: one after the other, 1: all at once.
  double overlap = 0;
  /// A transfer waits until its receive is posted; otherwise it starts when it is sent. Matters for
  /// lowered schedules only.
  bool rendezvous = false;

  friend bool operator==(const CostModel&, const CostModel&) = default;
};

/// ArgumentError, naming the entry, for a negative, infinite or undefined number, an overlap
/// outside [0, 1], or an entry for a stage, microbatch or rank that does not exist.
void check_costs(const CostModel& costs, int32_t ranks, int32_t stages, int32_t microbatches);

/// Reads "F=18522,B=18086,W=9337,C=601". Keys: F, I (or B, as the papers name it), W, FULL (the
/// whole backward), C (latency), BW (bandwidth), BYTES, MF, MI (or MB), MW (memory of F, freed by
/// I, by W), MS (of what is sent), WEIGHTS, G and MG (time and memory of UNSHARD), CAP, OVERLAP.
/// ParseError, with the column, on anything
/// else or a key that comes twice.
CostModel parse_costs(std::string_view text);

/// Reads a cost file: JSON with the members of CostModel under the keys of parse_costs. See
/// docs/schedules.md. ParseError, with line and column, for text that is not JSON; ArgumentError,
/// naming the entry, for JSON that is not a cost file.
CostModel parse_cost_file(std::string_view json);

}  // namespace stagecraft
