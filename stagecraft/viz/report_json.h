#pragma once

#include <string>

#include "stagecraft/viz/run_report.h"

namespace stagecraft::viz {

/// report_json in one line that may stand inside an HTML script element, without the times of each
/// action.
std::string report_data(const RunReport& report);

}  // namespace stagecraft::viz
