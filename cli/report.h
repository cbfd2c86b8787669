#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/sim/simulate.h"
#include "stagecraft/sim/unit_steps.h"

namespace stagecraft::cli {

/// A number as JSON: whole ones without a point.
nlohmann::ordered_json to_json_number(double value);
/// JSON to print, with a line end. Names that are not UTF-8 are repaired.
std::string dump(const nlohmann::ordered_json& json);

/// What a simulation found, to read. `name` is what was simulated.
std::string report_text(const std::string& name, const Schedule& schedule,
                        const Simulation& simulation);
/// The same and more, for programs; `timeline`: every action's times and every change of memory.
std::string report_json(const std::string& name, const Schedule& schedule,
                        const Simulation& simulation, bool timeline);

/// The same for a run in steps; `timeline`: what each rank does in each step.
std::string report_text(const std::string& name, const Schedule& schedule, const UnitSteps& run);
std::string report_json(const std::string& name, const Schedule& schedule, const UnitSteps& run,
                        bool timeline);

}  // namespace stagecraft::cli
