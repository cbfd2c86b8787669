#pragma once

namespace stagecraft::cli {

/// Replaces this process by the program `name` in the folder of this program, with the arguments
/// from `argv` on (without the program's name). BadUsage if the program or torch is not found.
[[noreturn]] void run_beside(const char* name, char** argv);

}  // namespace stagecraft::cli
