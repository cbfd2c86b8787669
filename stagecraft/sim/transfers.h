#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/sim/cost_model.h"

namespace stagecraft {

/// The values and gradients that go from rank to rank in a simulation, one for each edge of the
/// stage graph, direction and microbatch, and the links that carry them.
class Transfers {
 public:
  enum class Direction : uint8_t { kForward, kBackward };

  struct Transfer {
    double ready = 0;    ///< when it could have been sent
    double left = 0;     ///< when its last byte left, so that the sender can release it
    double arrived = 0;  ///< when it can be read
  };

  /// The arguments must outlive it. ArgumentError if the schedule is too sparse for a table.
  Transfers(const Schedule& schedule, const StageGraph& graph, const CostModel& costs);

  /// Edges from (kForward: to) a stage, as (other stage, number of the edge).
  struct End {
    StageId stage;
    std::size_t edge = 0;
  };
  std::span<const End> out_edges(StageId stage) const { return group(out_, first_out_, stage); }
  std::span<const End> in_edges(StageId stage) const { return group(in_, first_in_, stage); }

  bool is_elsewhere(std::size_t edge) const { return link_[0][edge] != kNoLink; }

  /// Sends along an edge: not before `ready`, not before `posted` and not before the link is free.
  void send(Direction direction, std::size_t edge, MicrobatchId m, double ready, double posted);
  const Transfer& get(Direction direction, std::size_t edge, MicrobatchId m) const {
    return transfers_[static_cast<std::size_t>(direction)][edge * columns_ + m.position()];
  }

 private:
  static constexpr uint32_t kNoLink = UINT32_MAX;
  struct Link {
    LinkCost cost;
    double free_at = 0;
  };

  static std::span<const End> group(const std::vector<End>& all,
                                    const std::vector<std::size_t>& first, StageId stage) {
    const std::size_t s = stage.position();
    return std::span(all).subspan(first[s], first[s + 1] - first[s]);
  }

  std::size_t columns_;
  std::vector<End> out_;
  std::vector<End> in_;
  std::vector<std::size_t> first_out_;
  std::vector<std::size_t> first_in_;
  std::vector<uint32_t> link_[2];  // by direction and edge
  std::vector<double> bytes_;      // by edge
  std::vector<Link> links_;
  std::vector<Transfer> transfers_[2];  // by direction; edge, then microbatch
};

}  // namespace stagecraft
