#pragma once

namespace stagecraft::cli {

/// Becomes the program of that name which lies beside this one, with the arguments from `argv` on
/// (its own name excluded). BadUsage when it is not there, or torch is not.
[[noreturn]] void run_beside(const char* name, char** argv);

}  // namespace stagecraft::cli
