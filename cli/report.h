#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/sim/simulate.h"
#include "stagecraft/sim/unit_steps.h"

namespace stagecraft::cli {

/// A number as JSON. Whole numbers have no decimal point.
nlohmann::ordered_json to_json_number(double value);
/// JSON to print, with a line end. Names that are not UTF-8 are repaired.
std::string dump(const nlohmann::ordered_json& json);

/// The results of a simulation as text. `name` is the name of the schedule.
std::string report_text(const std::string& name, const Schedule& schedule,
                        const Simulation& simulation);
/// The results as JSON. With `timeline`, they include the times of every action and every change of
/// memory.
std::string report_json(const std::string& name, const Schedule& schedule,
                        const Simulation& simulation, bool timeline);

/// The same for a run in unit steps. With `timeline`, the JSON includes the action of each rank in
/// each step.
std::string report_text(const std::string& name, const Schedule& schedule, const UnitSteps& run);
std::string report_json(const std::string& name, const Schedule& schedule, const UnitSteps& run,
                        bool timeline);

}  // namespace stagecraft::cli
