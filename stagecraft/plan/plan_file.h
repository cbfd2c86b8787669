#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/plan/make_plan.h"

namespace stagecraft {

/// Identifies the model that a plan was made for, so that a plan for a different model is refused.
struct PlannedModel {
  std::string graph = {};  ///< checksum of the graph; empty without one
  /// The beginning of each stage except stage 0, as the partition names it: a module or a node.
  std::vector<std::string> split_points = {};

  friend bool operator==(const PlannedModel&, const PlannedModel&) = default;
};

/// The contents of a plan file: everything needed to run the plan, and the problem that it was made
/// from.
struct SavedPlan {
  PlanProblem problem;
  PlanChoice choice;
  std::string schedule_name;
  Schedule schedule;
  Objective objective = Objective::kStep;
  double predicted = 0;  ///< of the objective
  std::vector<double> peaks = {};
  double bound = 0;
  double any_split_bound = 0;
  uint64_t seed = 1;
  double seconds = 0;
  PlannedModel model = {};
  /// If parameters are sharded: how many stages each rank unshards ahead.
  std::vector<int32_t> lookahead = {};

  int32_t num_ranks() const { return problem.num_ranks(); }
};

SavedPlan to_saved(const Plan& plan, PlannedModel model = {});

/// A plan as JSON. The member "schedule" is a schedule in its own JSON form (schedule/json.h), so
/// every reader of schedules reads a plan file as well.
std::string to_plan_file(const SavedPlan& plan);

/// The inverse. The text may come from anywhere: ParseError, with line and column, for text that is
/// not JSON; ArgumentError, which names the member, for JSON that is not a plan, for a version that
/// this program does not read, and for a plan whose parts do not fit each other: the schedule is
/// verified, and the predicted time and memory are those of its costs.
SavedPlan parse_plan_file(std::string_view text);
/// The costs of the plan's stages for its schedule. The schedule may have been edited: the
/// prediction is not compared. Throws as parse_plan_file for everything else.
CostModel parse_plan_costs(std::string_view text);
/// The same for a file. FileError if it cannot be read; errors begin with the file's name.
SavedPlan read_plan_file(const std::string& path);

/// Whether the text begins like a plan file. For readers that accept more than one format.
bool looks_like_plan(std::string_view text);

/// ArgumentError, which says what differs, unless the plan is for this number of ranks and for this
/// graph. The graph is compared if the plan and the caller have one.
void require_plan_for(const SavedPlan& plan, int32_t ranks, std::string_view graph = {});

/// A checksum of the graph's text for PlannedModel::graph.
std::string graph_checksum(std::string_view graph_text);

}  // namespace stagecraft
