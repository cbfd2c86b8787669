#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/base/index.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft::viz {

/// One action in a drawing. The parts of an overlap are bars from its start to its end, one above
/// the other, no matter when each part ran.
struct Bar {
  double start = 0;
  double end = 0;
  Interval run;  ///< when the action itself ran
  Action action;
  int32_t chunk = 0;       ///< which of its rank's stages this is, from 0
  int32_t part = 0;        ///< which part of its overlap, from 0, of those that ran
  int32_t parts = 1;       ///< of its overlap that ran
  std::size_t offset = 0;  ///< of the action in its rank's list
};

struct Lane {
  std::vector<Bar> bars;   ///< F, I, W and B, by time
  std::vector<Bar> marks;  ///< all other actions, by time: transfers, UNSHARD, ...
  int32_t chunks = 1;      ///< stages of the rank, at least 1
};

/// The lanes of a drawing, one for each rank. Actions that did not run are left out. ArgumentError,
/// which names `name`, unless `simulation` is one of `schedule`.
std::vector<Lane> lay_out(const Schedule& schedule, const Simulation& simulation,
                          std::string_view name = "simulation");

/// One number of a simulation as text, with that of the plan if there is one: "33 (plan 30)".
std::string beside_plan(std::string (*text)(double), double Simulation::*member,
                        const Simulation& simulation, const Simulation* plan);

/// The types of bars that occur, in the order of kBarTypes.
std::vector<ActionType> used_types(std::span<const Lane> lanes);
/// The waits that take time: WAIT_SEND_F, WAIT_SEND_B and WAIT_REDUCE_GRAD.
std::vector<Interval> long_waits(const Lane& lane);
bool has_long_waits(std::span<const Lane> lanes);
/// The most stages that a rank has.
int32_t most_chunks(std::span<const Lane> lanes);
/// The longest step such that every bar starts and ends at a multiple of it. Nothing if no such
/// step gives at most `max_steps` steps until `makespan`.
std::optional<double> find_step(std::span<const Lane> lanes, double makespan, int64_t max_steps);

/// Bars are drawn one by one if at most one in kFewNarrow is too narrow to be seen. A few narrow
/// bars, as in recordings, do not hide the others.
inline constexpr std::size_t kFewNarrow = 20;

/// A column of time: how much each type fills, in the order of kBarTypes.
struct Column {
  std::array<double, 4> share{};      ///< 0 to 1, together at most 1
  std::array<const Bar*, 4> first{};  ///< the first bar of the type in this column

  double busy() const { return share[0] + share[1] + share[2] + share[3]; }
  /// The type with the largest share. REQUIRES busy() > 0.
  std::size_t most() const;
};
/// Divides [0, makespan) into `columns` columns of equal length.
std::vector<Column> sample_columns(const Lane& lane, double makespan, int64_t columns);

}  // namespace stagecraft::viz
