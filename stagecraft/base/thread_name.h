#pragma once

#include <string>

namespace stagecraft::detail {

/// Names the calling thread for debuggers and `/proc/PID/task/*/comm`: "sc out 3". The system keeps
/// the first 15 characters. docs/threads.md lists all names.
void name_thread(const std::string& name);

}  // namespace stagecraft::detail
