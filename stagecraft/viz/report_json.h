#pragma once

#include <string>

#include "stagecraft/viz/run_report.h"

namespace stagecraft::viz {

/// The result of report_json on one line that may occur inside an HTML script element, without the
/// times of each action.
std::string report_data(const RunReport& report);

}  // namespace stagecraft::viz
